// The frame: view, theme, and sign-in if the server asks for a token. Links are `#...`, so the page works below any path.
import {render} from "./vendor/preact.js";
import {useEffect, useRef, useState} from "./vendor/hooks.js";
import "./vendor/signals.js";
import {html} from "./html.js";
import {Cluster} from "./cluster.js";
import {Jobs, Queue} from "./jobs.js";
import {JobPage} from "./job.js";
import {asked, token} from "./stream.js";

const VIEWS = [["", "Cluster", Cluster], ["jobs", "Jobs", Jobs], ["queue", "Queue", Queue]];

function where() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""];
  }
}

function useTheme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") ?? "");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }, [theme]);
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return [dark, () => setTheme(dark ? "light" : "dark")];
}

function Ask() {
  const box = useRef(null);
  const submit = event => {
    event.preventDefault();
    asked.value = "";
    token.value = box.current.value.trim();
  };
  return html`<form class="card ask" onSubmit=${submit} aria-labelledby="ask"><h2 id="ask">Sign in</h2>
    <p>${asked.value}. Enter your Kubernetes token; <code>kubectl create token NAME</code> creates one for a service account. The token is kept only in this page's memory.</p>
    <label>Token <input type="password" ref=${box} autocomplete="off" spellcheck=${false} required /></label><button>Sign in</button></form>`;
}

function App() {
  const [at, go] = useState(where());
  const [dark, turn] = useTheme();
  const main = useRef(null);
  useEffect(() => {
    const moved = () => {
      go(where());
      main.current.focus();
      scrollTo(0, 0);
    };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [view, namespace, name] = at;
  const isJob = view === "job" && namespace && name;
  const [id, title, View] = VIEWS.find(each => each[0] === view) ?? VIEWS[0];
  document.title = `${isJob ? `${name} (${namespace})` : title} · TFJobs`;
  const skip = event => {
    event.preventDefault();
    main.current.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <nav aria-label="Views"><a class="brand" href="#/" aria-label="TFJobs, cluster view"><img src="icon.svg" alt="" width="24" height="24" /><span>TFJobs</span></a>
      ${VIEWS.map(([each, word]) => html`<a href=${`#/${each}`} aria-current=${(isJob ? "jobs" : id) === each ? "page" : null}>${word}</a>`)}
      <button class="theme" onClick=${turn} aria-pressed=${dark}>Dark</button></nav>
    <main id="main" tabindex="-1" ref=${main}>${asked.value ? html`<${Ask} />` : null}${
      isJob ? html`<${JobPage} key=${`${namespace}/${name}`} namespace=${namespace} name=${name} />` : html`<${View} key=${id} />`}</main>`;
}

document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
