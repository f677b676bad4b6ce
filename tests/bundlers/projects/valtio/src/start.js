import { createElement, StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app.jsx";

const root = document.body.appendChild(document.createElement("div"));
createRoot(root).render(createElement(StrictMode, null, createElement(App)));
