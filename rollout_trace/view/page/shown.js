// How values of a trajectory are written on the page.
RT.shown = (() => {
  const { el, count } = RT.dom;
  const known = (value) => value !== null && value !== undefined;

  /** The probability of a logprob, in three digits. */
  function probability(logprob) {
    const p = Math.exp(logprob);
    return p !== 0 && p < 0.001 ? p.toExponential(1) : p.toFixed(3);
  }

  /** A logprob or an entropy, in three digits after the point. */
  const nats = (value) => (known(value) ? value.toFixed(3) : "-");

  /** A ratio of probabilities, from its logarithm. */
  const ratio = (log) => (Math.abs(log) < 6.9 ? Math.exp(log).toFixed(3) : Math.exp(log).toExponential(1));

  /** A list of terms and values; those that are not known are left out. A value may be a node. */
  function terms(pairs) {
    const kept = pairs.filter(([, value]) => known(value) && value !== "" && value !== "-");
    return el("dl", { class: "terms" }, kept.map(([term, value]) => [
      el("dt", {}, term), el("dd", {}, value instanceof Node ? value : String(value)),
    ]));
  }

  /** A text that may be long: its beginning, and a button for more. */
  function long(value, { limit = 4000, step = 100000, tag = "div", name = "body" } = {}) {
    let shown = Math.min(value.length, limit);
    const box = el(tag, { class: name }, value.slice(0, shown));
    if (shown === value.length) return box;
    const label = () =>
      `show more: ${count(value.length - shown)} of ${count(value.length)} characters are not shown`;
    const more = el("button", { class: "link more", type: "button" }, label());
    more.addEventListener("click", () => {
      const end = Math.min(value.length, shown + step);
      more.before(RT.dom.text(value.slice(shown, end)));
      shown = end;
      if (shown === value.length) more.remove();
      else more.textContent = label();
    });
    box.append(more);
    return box;
  }

  /** A value as JSON with two blanks a level; a text as it is. */
  function json(value) {
    return long(typeof value === "string" ? value : JSON.stringify(value, null, 2), { tag: "pre", name: "json" });
  }

  /** A part of the column at the side. */
  function section(title, ...children) {
    return el("section", { class: "side-section", "aria-label": title }, el("h2", {}, title), children);
  }

  /** A row of buttons of which one is chosen. `choices`: [[value, label]]. */
  function choice(label, choices, chosen, onchoose) {
    return el("div", { class: "segments", role: "group", "aria-label": label }, choices.map(([value, name]) =>
      el("button", { type: "button", "aria-pressed": String(value === chosen), data: { value }, on: { click: () => onchoose(value) } },
        name)));
  }

  /** Marks the button of a `choice`. */
  function choose(box, value) {
    for (const button of box.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }

  /** A button that is on or off; `set(on)` of what it gives changes how it looks. */
  function toggle(label, title, on, run) {
    const button = el("button", { class: "button", type: "button", title, "aria-pressed": String(on), on: { click: run } }, label);
    return { button, set: (value) => button.setAttribute("aria-pressed", String(value)) };
  }

  /** A button that copies the text that `text()` gives. `what`: its name. */
  function copier(what, text) {
    const button = el("button", { class: "link copy", type: "button", "aria-label": `copy ${what}`, title: `copy ${what}` }, "copy");
    button.addEventListener("click", async () => {
      button.textContent = (await copied(text())) ? "copied" : "not copied";
      window.setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    return button;
  }

  async function copied(value) {
    try {
      await navigator.clipboard.writeText(value);
      return true;
    } catch {
      // Not allowed, or a page from another machine, where browsers have no clipboard.
      const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
      area.value = value;
      (document.querySelector("dialog[open]") || document.body).append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  /** A value that one may want elsewhere, such as an id; null where it is not known. */
  const copyable = (what, value) => (known(value) && value !== "" ? el("span", { class: "copyable" }, String(value), " ", copier(what, () => String(value))) : null);

  return { copier, copyable, known, probability, nats, ratio, terms, long, json, section, choice, choose, toggle };
})();
