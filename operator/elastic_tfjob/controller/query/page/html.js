// The one place that binds htm to Preact. Whatever is put between ${ } becomes text or an attribute, never markup.
import {h} from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
