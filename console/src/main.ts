import { mount } from "svelte";
import App from "./App.svelte";
import "./styles/base.css";
import { askEarly } from "./lib/early.ts";
import { place } from "./lib/place.svelte.ts";
import { comeBack } from "./lib/returning.ts";
import { applyTheme } from "./lib/theme.ts";

applyTheme();
comeBack();
askEarly(place.link);
const target = document.getElementById("app");
if (target) mount(App, { target });
