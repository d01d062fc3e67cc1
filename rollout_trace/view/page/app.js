// The frame of the page: addresses, the bar on top, refreshing, theme, keys and errors.
//
// A view is registered with RT.app.route(name, view); `name` is the first part of the hash ("" is the overview):
//   open(params, element)  shows it; params = {path: ["KEY", ...], query: {step: "12", ...}}; may return a promise
//   close()                it leaves: drop listeners and timers outside of `element`, which is emptied afterwards
//   update(params)         optional: the query changed, the path did not; without it the view is closed and opened
//   refresh(info)          optional: files or notes changed; without it nothing happens
//   keys                   optional: [{key: "j", label: "next line", run(event)}, ...]; `key` as in KeyboardEvent.key;
//                          without `run` it is only listed in the help
//   help()                 optional: nodes that the help shows below the keys
RT.app = (() => {
  const { el, fill, remembered, remember } = RT.dom;
  const POLL = 2000;
  const routes = new Map();
  let current = null; // {name, path, view}
  let info = null;
  let opening = 0;
  let place, state, home;

  const route = (name, view) => void routes.set(name, view);

  /** The parts of a hash: {name, path, query}. */
  function parse(hash) {
    const [path, query] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
    const parts = path.split("/").filter(Boolean).map(decoded);
    return { name: parts[0] || "", path: parts.slice(1), query: Object.fromEntries(new URLSearchParams(query || "")) };
  }

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  /** The hash of a place: RT.app.hash("t", ["0-17"], {step: 12}). Values that are null, undefined or "" are left out. */
  function hash(name, path, query) {
    const kept = Object.entries(query || {}).filter(([, v]) => v !== null && v !== undefined && v !== "");
    const tail = new URLSearchParams(kept.map(([k, v]) => [k, String(v)])).toString();
    return "#/" + [name, ...(path || [])].filter(Boolean).map(encodeURIComponent).join("/") + (tail ? "?" + tail : "");
  }

  /** Goes to a place, as a link does. */
  function go(to) {
    if (window.location.hash === to) follow();
    else window.location.hash = to;
  }

  /** Writes the address of what is already shown: no view is opened, and going back passes over it. */
  function replace(to) {
    window.history.replaceState(null, "", to);
  }

  async function follow() {
    const { name, path, query } = parse(window.location.hash);
    const view = routes.get(name);
    const params = { path, query };
    const turn = ++opening;
    banner(null);
    try {
      if (current && current.view === view && view && view.update && same(current.path, path)) {
        await view.update(params);
        return;
      }
      leave();
      const main = document.getElementById("main");
      main.scrollTop = 0;
      setTitle("");
      if (!view) throw new Error(`there is no view "${name}" on this page; go back to the list`);
      current = { name, path, view };
      const element = el("div", { class: `view view-${name || "overview"}` });
      fill(main, element);
      await view.open(params, element);
    } catch (error) {
      if (turn === opening) fail(error);
    }
  }

  const same = (a, b) => a.length === b.length && a.every((part, i) => part === b[i]);

  function leave() {
    const left = current;
    current = null;
    try {
      if (left && left.view.close) left.view.close();
    } catch (error) {
      console.error(error);
    }
  }

  /** The error instead of the view. */
  function fail(error) {
    leave();
    fill(document.getElementById("main"), el("div", { class: "empty", role: "alert" },
      el("h1", {}, "This could not be shown"),
      el("p", {}, sentence(error)),
      el("button", { class: "button", on: { click: follow } }, "Try again"), " ",
      el("button", { class: "button", on: { click: () => go("#/") } }, "Back to the list")));
  }

  const sentence = (error) => String((error && error.message) || error);

  /** A line below the bar: a text or an error; null takes it away. `action` = {label, run} adds a button. */
  function banner(what, action) {
    const element = document.getElementById("banner");
    if (what === null) return void (fill(element), element.className = "");
    element.className = what instanceof Error ? "bad" : "";
    fill(element, el("span", {}, sentence(what)),
      action && el("button", { class: "link", on: { click: action.run } }, action.label));
  }

  /** The text in the bar beside the files' name, and of the browser's tab. */
  function setTitle(text) {
    if (place) fill(place, text);
    const title = (info && info.title) || "rollout_trace";
    document.title = RT.dom.text(text ? `${text} · ${title}` : title);
  }

  function showState() {
    fill(home, info.title || "rollouts");
    const indexing = info.indexing;
    fill(state,
      indexing && el("progress", { max: indexing.of || 1, value: indexing.done, "aria-label": "reading the files" }),
      info.problems && info.problems.length ? el("button", { class: "button quiet warn", on: { click: showProblems } },
        RT.dom.plural(info.problems.length, "problem")) : null,
      indexing && el("span", { class: "num" }, `reading ${Math.floor((100 * indexing.done) / (indexing.of || 1))}%`));
  }

  /** What of the files could not be read. */
  function showProblems() {
    dialog("Problems", el("p", { class: "soft" }, "Everything else is shown."),
      el("ul", { class: "problem-list" }, info.problems.map((problem) => el("li", {}, problem))));
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
      banner(new Error(`The page's server does not answer (${sentence(error)}). What is shown stays as it is; trying again.`));
      return;
    }
    if (lost) banner(null);
    lost = false;
    showState();
    if (before && before.generation === info.generation && !before.indexing === !info.indexing) return;
    try {
      if (current && current.view.refresh) await current.view.refresh(info);
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

  function dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function toggleTheme() {
    const theme = dark() ? "light" : "dark";
    const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    setTheme(theme);
    remember("theme", theme === system ? null : theme);
  }

  // Keys.

  const common = [
    { key: "?", label: "this help", run: help },
    { key: "D", label: "light or dark", run: toggleTheme },
  ];

  const typing = (target) => target instanceof Element &&
    (target.isContentEditable || /^(textarea|select)$/i.test(target.tagName) ||
      (/^input$/i.test(target.tagName) && !/^(checkbox|radio|button|range)$/i.test(target.type)));

  function pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    if (typing(event.target)) return;
    if (event.key === "Enter" && event.target instanceof Element && event.target.closest("a,button,summary")) return;
    const bound = [...((current && current.view.keys) || []), ...common].find((k) => k.key === event.key && k.run);
    if (!bound) return;
    event.preventDefault();
    bound.run(event);
  }

  const KEY_NAMES = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", " ": "Space" };

  function keyTable(keys) {
    const byLabel = new Map();
    for (const { key, label } of keys) byLabel.set(label, [...(byLabel.get(label) || []), key]);
    return el("dl", { class: "keys" }, [...byLabel].map(([label, all]) =>
      [el("dt", {}, all.map((key) => [el("kbd", {}, KEY_NAMES[key] || key), " "])), el("dd", {}, label)]));
  }

  /** Opens a dialog with these nodes; it closes with Esc, with its button, and with a click beside it. */
  function dialog(title, ...children) {
    const box = el("dialog", { "aria-label": title },
      el("h1", {}, title, el("button", { class: "button quiet", on: { click: () => box.close() } }, "Close")), children);
    box.addEventListener("click", (event) => event.target === box && box.close());
    box.addEventListener("close", () => box.remove());
    document.body.append(box);
    box.showModal();
    return box;
  }

  function help() {
    const view = current && current.view;
    dialog("Keys and help", keyTable([...((view && view.keys) || []), ...common]), view && view.help && view.help());
  }

  function drawBar() {
    home = el("a", { class: "home clip", href: "#/", title: "All trajectories" });
    place = el("span", { class: "place clip" });
    state = el("span", { class: "state" });
    fill(document.getElementById("bar"), home, place, state,
      el("button", { class: "button quiet", on: { click: toggleTheme }, "aria-label": "light or dark" }, "◐"),
      el("button", { class: "button quiet", on: { click: help }, "aria-label": "keys and help" }, "?"));
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

  /** Begins: called once, when every view is registered. */
  async function start() {
    setTheme(remembered("theme", null));
    drawBar();
    document.addEventListener("keydown", pressed);
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      document.getElementById("main").focus();
    });
    await connect();
    window.addEventListener("hashchange", follow);
    await follow();
    if (!info.static) window.setTimeout(keepPolling, POLL);
  }

  return {
    route, go, replace, hash, parse, setTitle, banner, fail, dialog, toggleTheme, start,
    get info() { return info; },
  };
})();
