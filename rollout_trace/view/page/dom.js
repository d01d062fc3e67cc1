"use strict";
// Makes the nodes of the page. Text goes in as text nodes alone, with what cannot be seen made visible.
window.RT = {};

RT.dom = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Default_Ignorable_Code_Point}]/gu;
  // Alternatives, no class: Chromium 156 does not find the end of an astral character in a class.
  const BEFORE_JOINER = /(?:\p{Extended_Pictographic}|\p{Emoji_Modifier}|\uFE0F)$/u;
  const AFTER_JOINER = /^\p{Extended_Pictographic}/u;
  const BEFORE_VARIANT = /\p{Emoji}$/u;

  /** `s` with control, bidi, zero-width and other unseen characters, and lone surrogates, as escapes. Newlines and tabs
   *  stay, and so do the joiners inside emoji. */
  function text(s) {
    return String(s).replace(UNSEEN, (c, at, whole) => {
      if (c === "\n" || c === "\t") return c;
      const before = whole.slice(Math.max(0, at - 2), at);
      const after = whole.slice(at + c.length, at + c.length + 2);
      if (c === "\u200D" && BEFORE_JOINER.test(before) && AFTER_JOINER.test(after)) return c;
      if ((c === "\uFE0F" || c === "\uFE0E") && BEFORE_VARIANT.test(before)) return c;
      const code = c.codePointAt(0);
      if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
      if (code < 0x10000) return "\\u" + code.toString(16).padStart(4, "0");
      return "\\U" + code.toString(16).padStart(8, "0");
    });
  }

  function setAttributes(node, attributes) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [event, run] of Object.entries(value)) node.addEventListener(event, run);
      } else if (name === "style") {
        for (const [property, v] of Object.entries(value)) node.style.setProperty(property, String(v));
      } else if (name === "data") {
        for (const [key, v] of Object.entries(value)) node.dataset[key] = String(v);
      } else if (name === "value" || name === "checked" || name === "disabled" || name === "open" || name === "hidden") {
        node[name] = value;
      } else if (/^on/i.test(name)) {
        throw new Error(`listeners go into "on", not into the attribute ${name}`);
      } else if (name === "href" && !/^#/.test(value)) {
        throw new Error("links of the page lead into the page: #/...");
      } else {
        node.setAttribute(name, value === true ? "" : text(value));
      }
    }
  }

  function append(node, children) {
    for (const child of children) {
      if (child === null || child === undefined || child === false) continue;
      if (Array.isArray(child)) append(node, child);
      else node.append(child instanceof Node ? child : document.createTextNode(text(child)));
    }
  }

  /** An element. Attributes: `class`, `title`, `aria-...`; `on: {click: f}`, `style: {property: value}`,
   *  `data: {key: value}`; null, undefined and false are left out. Children: nodes, strings, numbers, arrays of these,
   *  null. Strings pass through `text`. */
  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    setAttributes(node, attributes);
    append(node, children);
    return node;
  }

  /** An element of SVG; otherwise as `el`. */
  function svg(tag, attributes, ...children) {
    const node = document.createElementNS(SVG, tag);
    setAttributes(node, attributes);
    append(node, children);
    return node;
  }

  /** Replaces what `node` contains. */
  function fill(node, ...children) {
    node.replaceChildren();
    append(node, children);
    return node;
  }

  /** What an element is to the reader: its line, kind and name, whatever its figures are. */
  function identity(node) {
    const line = node.closest("[data-key]");
    const name = node.dataset.name || node.getAttribute("aria-label") || node.title || node.textContent;
    return [line && line.dataset.key, node.tagName, name].join("\n");
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

  const known = (x) => typeof x === "number" && Number.isFinite(x);

  /** A count with thousands separated: "1,204"; "-" for what is not known. */
  function count(n) {
    return known(n) ? n.toLocaleString("en-US", { maximumFractionDigits: 0 }) : "-";
  }

  /** A count in at most five characters: "981", "12.4k", "3.1M". */
  function short(n) {
    if (!known(n)) return "-";
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(n) >= size * 0.9995) {
        const scaled = n / size;
        return (Math.abs(scaled) < 99.95 ? scaled.toFixed(1) : Math.round(scaled)) + unit;
      }
    }
    return Number.isInteger(n) ? String(n) : number(n);
  }

  /** A number in at most four (or `digits`) significant digits: "1", "0.25", "-3.077". */
  function number(x, digits = 4) {
    if (!known(x)) return x === Infinity ? "inf" : x === -Infinity ? "-inf" : "-";
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e6 || size < 1e-4) return x.toExponential(2);
    return String(Number(x.toPrecision(digits)));
  }

  /** A duration: "0.8 ms", "0.41 s", "2 m 05 s", "3 h 12 m". */
  function duration(seconds) {
    if (!known(seconds)) return "-";
    const size = Math.abs(seconds);
    if (size === 0) return "0 s";
    if (size < 0.0995) return Number((seconds * 1000).toPrecision(2)) + " ms";
    if (size < 9.995) return seconds.toFixed(2) + " s";
    if (size < 59.95) return seconds.toFixed(1) + " s";
    const whole = Math.round(seconds);
    if (size < 3599.5) return `${Math.floor(whole / 60)} m ${String(whole % 60).padStart(2, "0")} s`;
    const minutes = Math.round(seconds / 60);
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} m`;
  }

  /** An amount of money: "$0.0004"; other currencies by their code. */
  function cost(amount, currency) {
    if (!known(amount)) return "-";
    const size = Math.abs(amount);
    const places = size === 0 || size >= 0.0995 ? 2 : Math.min(10, 1 - Math.floor(Math.log10(size)));
    const digits = amount.toFixed(places);
    return !currency || currency.toUpperCase() === "USD" ? "$" + digits : `${digits} ${currency}`;
  }

  /** A Unix time in the reader's zone: "2026-11-23 08:02:11". */
  function time(unix) {
    if (!known(unix)) return "-";
    const d = new Date(unix * 1000);
    if (Number.isNaN(d.getTime())) return "-";
    const two = (n) => String(n).padStart(2, "0");
    return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ` +
      `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  }

  /** "1 step", "3 steps"; `many` where the plural is not `one` + "s". */
  function plural(n, one, many) {
    return `${count(n)} ${n === 1 ? one : many || one + "s"}`;
  }

  /** A grade or status as the class of a dot: good, warn, bad or idle. */
  function toneOfStatus(status) {
    if (status === "completed" || status === "ok") return "good";
    if (status === "error" || status === "failed" || status === "timeout") return "bad";
    return status === "running" || status === "open" ? "idle" : "warn";
  }

  const toneOfGrade = (grade) => ({ fatal: "bad", warning: "warn", info: "idle" })[grade] || null;

  /** A value remembered in the reader's browser, or `otherwise`. */
  function remembered(name, otherwise) {
    try {
      const stored = window.localStorage.getItem("rollout-trace." + name);
      return stored === null ? otherwise : JSON.parse(stored);
    } catch {
      return otherwise;
    }
  }

  /** The items by their keys, those of a key in their order. */
  function grouped(items, keyOf) {
    const found = new Map();
    for (const one of items) {
      const key = keyOf(one);
      if (found.has(key)) found.get(key).push(one);
      else found.set(key, [one]);
    }
    return found;
  }

  function remember(name, value) {
    try {
      window.localStorage.setItem("rollout-trace." + name, JSON.stringify(value));
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  }

  return {
    el, svg, fill, text, count, short, number, duration, cost, time, plural, toneOfStatus, toneOfGrade, keepFocus, grouped,
    remembered, remember,
  };
})();
