import { mount } from "svelte";
import App from "./App.svelte";
import "./styles/base.css";
import { comeBack } from "./lib/returning.ts";
import { applyTheme } from "./lib/theme.ts";

applyTheme();
comeBack();
const target = document.getElementById("app");
if (target) mount(App, { target });
