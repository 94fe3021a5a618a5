import { mount } from "svelte";
import App from "./App.svelte";
import "./styles/base.css";
import { askAll } from "./lib/caller.svelte.ts";
import { askEarly } from "./lib/early.ts";
import { router } from "./lib/router.svelte.ts";
import { comeBack } from "./lib/returning.ts";
import { applyTheme } from "./lib/theme.ts";

// Asked first: the storage that is read next makes the page wait, and the api works meanwhile.
askAll();
askEarly(router.link);
applyTheme();
comeBack();
const target = document.getElementById("app");
if (target) mount(App, { target });
