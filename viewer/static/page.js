/** Starts the page in a browser: from its own data blocks, or with the server that sent it. */

import { askServer, pageEngine, remoteEngine } from "./engine.js";
import { View } from "./view.js";

const data = JSON.parse(document.getElementById("data").textContent);
const makeEngine = data.host === "server" ? (model) => remoteEngine(model, askServer) : pageEngine;
const root = document.querySelector("main");
root.replaceChildren();
globalThis.streamscope = new View(root, data, makeEngine, { address: true });
