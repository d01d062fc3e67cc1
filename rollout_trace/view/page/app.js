// The frame of the page: addresses, the bar on top, refreshing, theme, keys and errors.
//
// RT.app.route(name, make) registers a view; `name` is the first part of the hash ("" is the overview).
// make(params, element) gives it; params = {path: ["KEY", ...], query: {step: "12", ...}}:
//   open()           shows it; may return a promise
//   close()          it leaves: drop listeners and timers outside of `element`, which is emptied afterwards
//   update(params)   the query changed, the path did not
//   refresh()        optional: files or notes changed; without it nothing happens
//   keys             [{key: "j", label: "next line", run()}, ...]; `key` as in KeyboardEvent.key; without `run` it is
//                    listed in the help alone
//   help()           optional: nodes that the help shows below the keys
RT.app = (() => {
  const POLL = 2000;
  const SYSTEM = window.matchMedia("(prefers-color-scheme: dark)");
  const main = document.getElementById("main");
  const [home, place, state, themeButton, helpButton] = document.getElementById("bar").children;
  const routes = new Map();
  let current = null; // {name, path, view}
  let info = null;
  let opening = 0;

  const route = (name, make) => void routes.set(name, make);

  /** The parts of a hash: {name, path, query}. */
  function parse(hash) {
    const [path, query] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
    const [name = "", ...rest] = path.split("/").filter(Boolean).map(decoded);
    return { name, path: rest, query: Object.fromEntries(new URLSearchParams(query || "")) };
  }

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  /** The hash of a place: RT.app.hash("t", ["0-17"], {step: 12}). Values that are not known, or "", are left out. */
  const hash = (name, path, query = {}) =>
    "#/" + [name, ...path].filter(Boolean).map(encodeURIComponent).join("/") + queryString(query);

  function go(to) {
    if (window.location.hash === to) follow();
    else window.location.hash = to;
  }

  /** Writes the address of what is already shown: no view is opened, and going back passes over it. */
  const replace = (to) => window.history.replaceState(null, "", to);

  async function follow() {
    const { name, path, query } = parse(window.location.hash);
    const turn = ++opening;
    banner(null);
    try {
      if (current && current.name === name && current.path.join("/") === path.join("/")) {
        return void (await current.view.update({ query }));
      }
      leave();
      main.scrollTop = 0;
      setTitle("");
      if (!routes.has(name)) throw new Error(`there is no view "${name}" on this page; go back to the list`);
      const element = el("div", { class: `view view-${name || "overview"}` });
      fill(main, element);
      current = { name, path, view: routes.get(name)({ path, query }, element) };
      await current.view.open();
    } catch (error) {
      if (turn === opening) fail(error);
    }
  }

  function leave() {
    const left = current;
    current = null;
    if (left) left.view.close();
  }

  function fail(error) {
    leave();
    fill(main, el("div.empty", { role: "alert" },
      el("h1", "This could not be shown"),
      el("p", sentence(error)),
      el("button.button", { on: { click: follow } }, "Try again"), " ",
      el("button.button", { on: { click: () => go("#/") } }, "Back to the list")));
  }

  const sentence = (error) => String((error && error.message) || error);

  /** A line below the bar: a text or an error; null takes it away. */
  function banner(what) {
    const element = document.getElementById("banner");
    element.className = what instanceof Error ? "bad" : "";
    fill(element, what !== null && el("span", sentence(what)));
  }

  /** The text in the bar beside the files' name, and of the browser's tab. */
  function setTitle(what) {
    fill(place, what);
    const title = (info && info.title) || "rollout_trace";
    document.title = text(what ? `${what} · ${title}` : title);
  }

  function showState() {
    fill(home, info.title || "rollouts");
    const { indexing, problems } = info;
    fill(state,
      indexing && el("progress", { max: indexing.of || 1, value: indexing.done, "aria-label": "reading the files" }),
      problems && problems.length > 0 && el("button.button.quiet.warn", { on: { click: showProblems } },
        plural(problems.length, "problem")),
      indexing && el("span.num", `reading ${Math.floor((100 * indexing.done) / (indexing.of || 1))}%`));
  }

  function showProblems() {
    dialog("Problems", el("p.soft", "Everything else is shown."),
      el("ul.problem-list", info.problems.map((problem) => el("li", problem))));
  }

  // Refreshing.

  let lost = false;

  async function poll() {
    if (document.hidden) return;
    const before = info;
    try {
      info = await RT.data.info();
    } catch (error) {
      lost = true;
      const why = `The page's server does not answer (${sentence(error)}).`;
      banner(new Error(`${why} What is shown stays as it is; trying again.`));
      return;
    }
    if (lost) banner(null);
    lost = false;
    showState();
    if (before.generation === info.generation && !before.indexing === !info.indexing) return;
    try {
      if (current && current.view.refresh) await current.view.refresh();
    } catch (error) {
      banner(error);
    }
  }

  async function keepPolling() {
    await poll();
    window.setTimeout(keepPolling, POLL);
  }

  // Theme: as the system has it, until another is chosen.

  function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }

  function toggleTheme() {
    const system = SYSTEM.matches ? "dark" : "light";
    const theme = (document.documentElement.dataset.theme || system) === "dark" ? "light" : "dark";
    setTheme(theme);
    remember("theme", theme === system ? null : theme);
  }

  // Keys.

  const common = [
    { key: "?", label: "this help", run: help },
    { key: "D", label: "light or dark", run: toggleTheme },
  ];

  const keys = () => [...(current ? current.view.keys : []), ...common];

  const typing = (target) => target.isContentEditable ||
    target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=button], [type=range])");

  function pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]") || typing(event.target)) return;
    if (event.key === "Enter" && event.target.closest("a,button,summary")) return;
    const bound = keys().find((k) => k.key === event.key && k.run);
    if (!bound) return;
    event.preventDefault();
    bound.run();
  }

  const KEY_NAMES = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", " ": "Space" };

  const keyTable = () => el("dl.keys", [...Map.groupBy(keys(), (one) => one.label)].map(([label, all]) =>
    [el("dt", all.map(({ key }) => [el("kbd", KEY_NAMES[key] || key), " "])), el("dd", label)]));

  /** Opens a dialog with these nodes; it closes with Esc, with its button, and with a click beside it. */
  function dialog(title, ...children) {
    const box = el("dialog", { "aria-label": title },
      el("h1", title, el("button.button.quiet", { on: { click: () => box.close() } }, "Close")), children);
    box.addEventListener("click", (event) => event.target === box && box.close());
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
  }

  function help() {
    dialog("Keys and help", keyTable(), current && current.view.help && current.view.help());
  }

  async function connect() {
    try {
      info = await RT.data.info();
      showState();
    } catch (error) {
      fail(error);
      await new Promise((done) => window.setTimeout(done, POLL));
      await connect();
    }
  }

  async function start() {
    setTheme(remembered("theme", null));
    themeButton.addEventListener("click", toggleTheme);
    helpButton.addEventListener("click", help);
    document.addEventListener("keydown", pressed);
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      main.focus();
    });
    await connect();
    window.addEventListener("hashchange", follow);
    await follow();
    if (!info.static) window.setTimeout(keepPolling, POLL);
  }

  // Every view is registered then.
  document.addEventListener("DOMContentLoaded", start);

  return { route, go, replace, hash, parse, setTitle, banner, dialog, get info() { return info; } };
})();
