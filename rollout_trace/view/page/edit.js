// Changes the reward and the note of a trajectory, through RT.data.annotate.
RT.edit = (() => {
  const { el, fill } = RT.dom;
  const { section } = RT.shown;

  const asText = (value) => (value === null || value === undefined ? "" : String(value));

  /** A number, or null for an empty field. Raises an Error that says what is wrong. */
  function numberOf(name, value) {
    const trimmed = value.trim();
    if (trimmed === "") return null;
    const number = Number(trimmed);
    if (!Number.isFinite(number)) throw new Error(`${name} is a number such as 0.5; "${trimmed}" is none.`);
    return number;
  }

  /** Lines such as "format = 0.5" as {name: number}. */
  function namedNumbers(value) {
    const found = {};
    for (const line of value.split("\n").filter((one) => one.trim())) {
      const at = line.lastIndexOf("=");
      const name = line.slice(0, Math.max(0, at)).trim();
      if (!name) throw new Error(`Parts of a reward are lines such as "format = 0.5"; "${line.trim()}" is none.`);
      const number = numberOf(name, line.slice(at + 1));
      if (number === null) throw new Error(`${name} needs a number behind the sign "=".`);
      found[name] = number;
    }
    return found;
  }

  /** What the form changes; nothing is sent that is as it was. */
  function changes(form, summary) {
    const values = {};
    const reward = numberOf("The reward", form.reward.value);
    if (reward !== null && reward !== summary.reward) values.reward = reward;
    if (reward === null && summary.reward !== null && summary.reward !== undefined) {
      throw new Error("A reward that was given stays: write another number.");
    }
    const rewards = namedNumbers(form.rewards.value);
    const changed = Object.entries(rewards).filter(([name, value]) => (summary.rewards || {})[name] !== value);
    if (changed.length) values.rewards = Object.fromEntries(changed);
    if (form.note.value !== asText(summary.note)) values.metadata = { note: form.note.value };
    return values;
  }

  /** The part of the side with reward and note. `onsaved(summary)` is called with the new summary. */
  function panel(key, summary, writable, onsaved) {
    const body = el("div", { class: "scores" });
    const element = section("Reward", body);

    function show() {
      fill(body, RT.details.scores(summary),
        writable && el("button", { class: "button edit-open", type: "button", on: { click: open } }, "Edit reward and note"));
    }

    function open() {
      if (!writable || body.querySelector("form")) return;
      const problem = el("div", { class: "bad problem", role: "alert" });
      const save = el("button", { class: "button main", type: "submit" }, "Save");
      const field = (name, label, input) => el("label", {}, label, input);
      const rewards = Object.entries(summary.rewards || {}).map(([name, value]) => `${name} = ${value}`).join("\n");
      const form = el("form", { class: "edit", "aria-label": "reward and note" },
        field("reward", "Reward", el("input", { class: "field", name: "reward", inputmode: "decimal", value: asText(summary.reward), autocomplete: "off" })),
        field("rewards", "Its parts, a line each: name = number", el("textarea", { class: "field", name: "rewards", rows: "3", value: rewards })),
        field("note", "Note", el("textarea", { class: "field", name: "note", rows: "4", value: asText(summary.note) })),
        problem,
        el("div", { class: "buttons" }, save, " ", el("button", { class: "button", type: "button", on: { click: show } }, "Cancel")));
      form.addEventListener("keydown", (event) => {
        if (event.key === "Escape") show();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      });
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        try {
          const values = changes(form.elements, summary);
          if (Object.keys(values).length) {
            save.disabled = true;
            summary = { ...summary, ...(await RT.data.annotate(key, values)) };
            onsaved(summary);
          }
          show();
        } catch (error) {
          save.disabled = false;
          fill(problem, error.message);
        }
      });
      fill(body, form);
      form.elements.reward.focus();
    }

    show();
    return {
      element,
      open,
      get editing() { return Boolean(body.querySelector("form")); },
    };
  }

  return { panel };
})();
