// Makes the nodes of the page. Text goes in as text nodes alone, with what cannot be seen made visible.

const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Default_Ignorable_Code_Point}]/gu;
// Alternatives, no class: Chromium 156 does not find the end of an astral character in a class.
const BEFORE_JOINER = /(?:\p{Extended_Pictographic}|\p{Emoji_Modifier}|\uFE0F)$/u;
const AFTER_JOINER = /^\p{Extended_Pictographic}/u;
const BEFORE_VARIANT = /\p{Emoji}$/u;
const PROPERTIES = ["value", "checked", "disabled", "open", "hidden"];

/** `s` with control, bidi, zero-width and other unseen characters, and lone surrogates, as escapes. Newlines and tabs
 *  stay, and so do the joiners inside emoji. */
function text(s) {
  return String(s).replace(UNSEEN, (c, at, whole) => {
    if (c === "\n" || c === "\t") return c;
    const before = whole.slice(Math.max(0, at - 2), at);
    const after = whole.slice(at + c.length, at + c.length + 2);
    if (c === "\u200D" && BEFORE_JOINER.test(before) && AFTER_JOINER.test(after)) return c;
    if ((c === "\uFE0F" || c === "\uFE0E") && BEFORE_VARIANT.test(before)) return c;
    const hex = c.codePointAt(0).toString(16);
    const [letter, digits] = hex.length < 3 ? ["x", 2] : hex.length < 5 ? ["u", 4] : ["U", 8];
    return "\\" + letter + hex.padStart(digits, "0");
  });
}

const isGiven = (value) => known(value) && value !== false;

function setAttribute(node, name, value) {
  if (name === "on") {
    for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
  } else if (name === "style") {
    for (const [property, v] of Object.entries(value)) node.style.setProperty(property, String(v));
  } else if (name === "data") {
    Object.assign(node.dataset, value);
  } else if (PROPERTIES.includes(name)) {
    node[name] = value;
  } else if (/^on/i.test(name)) {
    throw new Error(`listeners go into "on", not into the attribute ${name}`);
  } else if (name === "href" && !value.startsWith("#")) {
    throw new Error("links of the page lead into the page: #/...");
  } else {
    node.setAttribute(name, value === true ? "" : text(value));
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity).filter(isGiven)) node.append(child instanceof Node ? child : text(child));
  return node;
}

function made(space, kind, given) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElementNS(space, tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  const isPlain = known(given[0]) && Object.getPrototypeOf(given[0]) === Object.prototype;
  const [attributes, children] = isPlain ? [given[0], given.slice(1)] : [{}, given];
  for (const [name, value] of Object.entries(attributes)) if (isGiven(value)) setAttribute(node, name, value);
  return append(node, children);
}

/** An element: el("p.soft.num", {title: "..."}, "text"). Attributes, which may be left out: `title`, `aria-...`;
 *  `on: {click: f}`, `style: {property: value}`, `data: {key: value}`; null, undefined and false are left out.
 *  Children: nodes, strings, numbers, arrays of these, null. Strings pass through `text`. */
const el = (kind, ...given) => made("http://www.w3.org/1999/xhtml", kind, given);

/** An element of SVG; otherwise as `el`. */
const svg = (kind, ...given) => made("http://www.w3.org/2000/svg", kind, given);

/** Replaces what `node` contains. */
function fill(node, ...children) {
  node.replaceChildren();
  return append(node, children);
}

/** What an element is to the reader: its line, kind and name, whatever its figures are. */
function identity(node) {
  const place = node.closest("[data-key]");
  const name = node.dataset.name || node.getAttribute("aria-label") || node.title || node.textContent;
  return [place && place.dataset.key, node.tagName, name].join("\n");
}

/** Draws inside of `element`, and gives the focus to what is now in the place of what had it. */
function keepFocus(element, draw) {
  const focused = document.activeElement;
  const before = element.contains(focused) ? identity(focused) : null;
  draw();
  if (before === null || element.contains(focused)) return;
  const all = [...element.querySelectorAll("a, button, select, input, [tabindex]")];
  const again = all.find((node) => identity(node) === before);
  if (again) again.focus({ preventScroll: true });
}

// Parts that several views have.

const soft = (...children) => el("span.soft", children);

/** A button that looks like a link. */
const link = (label, run, attributes = {}) =>
  el("button.link", { type: "button", ...attributes, on: { click: run } }, label);

/** A list of terms and values; those that are not known are left out. A value may be a node; an object of a file's is
 *  never taken for attributes. */
function terms(pairs) {
  const kept = pairs.filter(([, value]) => known(value) && value !== "" && value !== "-");
  return el("dl.terms", kept.map(([term, value]) => [el("dt", term), el("dd", {}, value)]));
}

/** A text that may be long: its beginning, and a button for more. */
function long(value, { limit = 4000, step = 100000, tag = "div", name = "body" } = {}) {
  let shown = Math.min(value.length, limit);
  const box = el(tag, { class: name }, value.slice(0, shown));
  if (shown === value.length) return box;
  const label = () => `show more: ${count(value.length - shown)} of ${count(value.length)} characters are not shown`;
  const more = link(label(), () => {
    const begin = shown;
    shown = Math.min(value.length, begin + step);
    more.before(text(value.slice(begin, shown)));
    if (shown === value.length) more.remove();
    else more.textContent = label();
  }, { class: "link more" });
  return append(box, [more]);
}

/** A value as JSON with two blanks a level; a text as it is. */
function json(value) {
  return long(typeof value === "string" ? value : JSON.stringify(value, null, 2), { tag: "pre", name: "json" });
}

/** A part of the column at the side. */
const section = (title, ...children) =>
  el("section.side-section", { "aria-label": title }, el("h2", title), children);

const press = (button, on) => button.setAttribute("aria-pressed", String(on));

const toggle = (label, title, run) => el("button.button", { type: "button", title, on: { click: run } }, label);

/** A row of buttons of which one is chosen. `choices`: [[value, label]], or values that are their own labels. */
function choice(label, choices, onchoose) {
  const pairs = choices.map((one) => [one].flat());
  return el("div.segments", { role: "group", "aria-label": label }, pairs.map(([value, name = value]) =>
    el("button", { type: "button", data: { value }, on: { click: () => onchoose(value) } }, name)));
}

function choose(box, value) {
  for (const button of box.children) press(button, button.dataset.value === value);
}

/** A button that copies the text that `given()` gives. `what`: its name. */
function copier(what, given) {
  const button = link("copy", async () => {
    button.textContent = (await toClipboard(given())) ? "copied" : "not copied";
    window.setTimeout(() => { button.textContent = "copy"; }, 1500);
  }, { class: "link copy", "aria-label": `copy ${what}`, title: `copy ${what}` });
  return button;
}

async function toClipboard(value) {
  try {
    await navigator.clipboard.writeText(value);
    return true;
  } catch {
    // Not allowed, or a page from another machine, where browsers have no clipboard.
    const area = el("textarea.unseen", { "aria-hidden": "true", value });
    (document.querySelector("dialog[open]") || document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/** A value that one may want elsewhere, such as an id; null where it is not known. */
const copyable = (what, value) => (known(value) && value !== ""
  ? el("span.copyable", String(value), " ", copier(what, () => String(value))) : null);
