// What is known of a trajectory and of a step beside what was said, and the form for reward and note.
RT.details = (() => {
  const joined = (values) => values.join(", ");
  const named = (numbers) => Object.entries(numbers || {}).map(([name, value]) => [name, number(value)]);

  /** The line below the title. */
  function subtitle(summary) {
    return dotted([
      `reward ${number(summary.reward)}`,
      summary.status,
      plural(summary.steps, "step"),
      known(summary.input_tokens) && `${count(summary.input_tokens)} read, ${count(summary.output_tokens)} sampled`,
      plural(summary.rows, "training row"),
      known(summary.cost) && cost(summary.cost, summary.currency),
      known(summary.seconds) && duration(summary.seconds),
    ]);
  }

  /** What a trajectory is of. */
  const placeOf = ({ task, group, index }) => dotted([task || group, known(index) && `rollout ${index}`]);

  function findings(context) {
    const all = context.outline.findings;
    if (!all.length) return section("Findings", el("p.soft", "None."));
    const byCode = [...Map.groupBy(all, (found) => found.code).values()];
    return section(`Findings: ${count(all.length)}`, byCode.map((list) => {
      const steps = [...new Set(list.map((one) => one.step).filter(known))];
      const card = RT.conversation.finding({ ...list[0], position: null });
      const links = steps.slice(0, 12).map((step) => [RT.conversation.stepLink(step, context), " "]);
      const rest = steps.length - links.length;
      if (steps.length) card.append(el("div.places", links, rest > 0 && `and ${count(rest)} more`));
      return card;
    }));
  }

  function scores({ reward, rewards, metrics, note }) {
    const [parts, others] = [named(rewards), named(metrics)];
    return [
      known(reward) || parts.length ? terms([["reward", number(reward)], ...parts]) : el("p.soft", "None was given."),
      others.length > 0 && [el("h3", "Metrics"), terms(others)],
      note && [el("h3", "Note"), el("p.note-text", note)],
    ];
  }

  /** Settings, usage and more of one step; `update(view, index)`. */
  function step() {
    const body = el("div");
    const element = section("Step", body);
    function update(view, index) {
      element.querySelector("h2").textContent = `Step ${index}`;
      if (!view) return void fill(body, el("p.soft", "Loading…"));
      const { line } = view;
      fill(body, terms([
        ["model", line.model], ["answered by", view.response_model !== line.model ? view.response_model : null],
        ["engine", view.engine], ["protocol", view.protocol], ["started", time(line.started)],
        ["messages repeated", view.repeated ? count(view.repeated) : null],
        ["prompt tokens", count(line.n_prompt)],
        ["mean logprob", known(line.mean_logprob) ? line.mean_logprob.toFixed(3) : null],
        ["finish", line.finish], ["stopped by", view.stop_reason], ["tools offered", joined(view.offered)],
        ["cost", cost(view.cost, view.currency)], ["advantage", number(view.advantage)],
        ["step id", copyable("the step's id", line.id)], ["response", copyable("the response's id", view.response_id)],
      ]), folded("Sampling", view.sampling), folded("Usage", view.usage), folded("Metadata", view.metadata));
    }
    return { element, update };
  }

  /** A value of the user's that opens on a click; null where there is none. */
  function folded(title, value) {
    if (!known(value) || (typeof value === "object" && !Object.keys(value).length)) return null;
    const box = el("details.fold", el("summary", title));
    box.addEventListener("toggle", () => box.append(el("div", contents(value))), { once: true });
    return box;
  }

  /** A value of the user's: texts of several lines, such as a patch, each under its name; all else as JSON. */
  function contents(value) {
    if (typeof value !== "object" || Array.isArray(value)) return json(value);
    const isLong = ([, one]) => typeof one === "string" && one.includes("\n");
    const entries = Object.entries(value);
    const others = entries.filter((entry) => !isLong(entry));
    return [
      others.length > 0 && json(Object.fromEntries(others)),
      entries.filter(isLong).map(([name, one]) => [el("h3", name), json(one)]),
    ];
  }

  function about({ summary, exchanges, exchange_bytes, task, environment, metadata }) {
    return section("Trajectory",
      terms([
        ["id", copyable("the trajectory's id", summary.id)], ["task", summary.task], ["group", summary.group],
        ["rollout", summary.index], ["attempt", summary.attempt],
        ["agents", joined(summary.agents)], ["models", joined(summary.models)], ["status", summary.status],
        ["stopped by", summary.stop_reason], ["started", time(summary.started)], ["took", duration(summary.seconds)],
        ["calls", count(summary.calls)], ["latency, sum", duration(summary.latency)],
        ["first token, mean", duration(summary.first_token)],
        ["tool runs", summary.tool_runs ? `${count(summary.tool_runs)}, ${count(summary.tool_errors)} failed` : null],
        ["input tokens", count(summary.input_tokens)], ["output tokens", count(summary.output_tokens)],
        ["exchanges", exchanges ? `${count(exchanges)}, ${plural(exchange_bytes, "byte")}` : null],
        ["trained tokens", count(summary.trained)], ["cost", cost(summary.cost, summary.currency)],
      ]),
      folded("Task", task), folded("Environment", environment), folded("Metadata", metadata));
  }

  /** The bytes of a step's request and answer, loaded when asked for. */
  async function raw(key, index, element) {
    const show = (...children) => fill(element, el("div.pane-inner", el("h2", `Step ${index}, raw`), children));
    show(el("p.soft", "Loading…"));
    try {
      const { request, response, line } = await RT.data.raw(key, index);
      const part = (title, value) => known(value) && [el("h3", title), json(value)];
      show(!known(request) && !known(response) && el("p.soft",
        "The request and the answer were not kept as bytes; wrap the client with keep_bytes=True to keep them."),
      part("Request", request), part("Answer", response), part("The trajectory's line in the file", line));
    } catch (error) {
      show(el("p.bad", { role: "alert" }, error.message));
    }
  }

  // The form.

  const asText = (value) => (known(value) ? String(value) : "");

  /** A number, or null for an empty field. Raises an Error that says what is wrong. */
  function numberOf(name, value) {
    const trimmed = value.trim();
    const found = Number(trimmed);
    if (!Number.isFinite(found)) throw new Error(`${name} is a number such as 0.5; "${trimmed}" is none.`);
    return trimmed === "" ? null : found;
  }

  /** Lines such as "format = 0.5" as [[name, number]]. */
  const namedNumbers = (value) => value.split("\n").filter((one) => one.trim()).map((line) => {
    const at = line.lastIndexOf("=");
    const name = line.slice(0, Math.max(0, at)).trim();
    if (!name) throw new Error(`Parts of a reward are lines such as "format = 0.5"; "${line.trim()}" is none.`);
    const found = numberOf(name, line.slice(at + 1));
    if (found === null) throw new Error(`${name} needs a number behind the sign "=".`);
    return [name, found];
  });

  /** What the form changes; nothing is sent that is as it was. */
  function changes(form, summary) {
    const values = {};
    const reward = numberOf("The reward", form.reward.value);
    const isGone = reward === null && known(summary.reward);
    if (isGone) throw new Error("A reward that was given stays: write another number.");
    if (reward !== null && reward !== summary.reward) values.reward = reward;
    const changed = namedNumbers(form.rewards.value).filter(([name, value]) => (summary.rewards || {})[name] !== value);
    if (changed.length) values.rewards = Object.fromEntries(changed);
    if (form.note.value !== asText(summary.note)) values.metadata = { note: form.note.value };
    return values;
  }

  function fields({ reward, rewards, note }) {
    const lines = Object.entries(rewards || {}).map(([name, value]) => `${name} = ${value}`).join("\n");
    const area = (name, rows, value) => el("textarea.field", { name, rows, value });
    return [
      el("label", "Reward", el("input.field", {
        name: "reward", inputmode: "decimal", value: asText(reward), autocomplete: "off",
      })),
      el("label", "Its parts, a line each: name = number", area("rewards", 3, lines)),
      el("label", "Note", area("note", 4, asText(note))),
    ];
  }

  /** The part of the side with reward and note. `onsaved(summary)` is called with the new summary. */
  function editor(key, summary, writable, onsaved) {
    const body = el("div.scores");

    function show() {
      fill(body, scores(summary),
        writable && el("button.button.edit-open", { type: "button", on: { click: open } }, "Edit reward and note"));
    }

    async function save(event) {
      event.preventDefault();
      const form = event.currentTarget;
      try {
        const values = changes(form.elements, summary);
        if (Object.keys(values).length) {
          form.elements.save.disabled = true;
          summary = { ...summary, ...(await RT.data.annotate(key, values)) };
          onsaved(summary);
        }
        show();
      } catch (error) {
        form.elements.save.disabled = false;
        fill(form.querySelector(".problem"), error.message);
      }
    }

    function keyed(event) {
      if (event.key === "Escape") show();
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.requestSubmit();
    }

    const isOpen = () => Boolean(body.querySelector("form"));

    function open() {
      if (isOpen()) return;
      const form = el("form.edit", { "aria-label": "reward and note", on: { submit: save, keydown: keyed } },
        fields(summary), el("div.bad.problem", { role: "alert" }),
        el("div.buttons", el("button.button.main", { type: "submit", name: "save" }, "Save"), " ",
          el("button.button", { type: "button", on: { click: show } }, "Cancel")));
      fill(body, form);
      form.elements.reward.focus();
    }

    show();
    return { element: section("Reward", body), open, isOpen };
  }

  return { subtitle, placeOf, findings, step, about, raw, editor };
})();
