// What is known of a trajectory and of a step beside what was said.
RT.details = (() => {
  const { el, fill, count, cost, duration, grouped, number, plural, time } = RT.dom;
  const { copyable, known, json, section, terms } = RT.shown;

  const joined = (values) => (values && values.length ? values.join(", ") : null);

  /** The line below the title. */
  function subtitle(summary) {
    return [
      `reward ${number(summary.reward)}`,
      summary.status || "completed",
      plural(summary.steps || 0, "step"),
      known(summary.input_tokens) && `${count(summary.input_tokens)} read, ${count(summary.output_tokens)} sampled`,
      plural(summary.rows || 0, "training row"),
      known(summary.cost) && cost(summary.cost, summary.currency),
      known(summary.seconds) && duration(summary.seconds),
    ].filter(Boolean).join(" · ");
  }

  function findings(outline, context) {
    if (!outline.findings.length) return section("Findings", el("p", { class: "soft" }, "None."));
    const codes = grouped(outline.findings, (found) => found.code);
    return section(`Findings: ${count(outline.findings.length)}`, [...codes.values()].map((list) => {
      const steps = [...new Set(list.filter((one) => known(one.step)).map((one) => one.step))];
      const card = RT.conversation.finding({ ...list[0], position: null });
      const links = steps.slice(0, 12).map((step) =>
        [el("button", { class: "link", type: "button", on: { click: () => context.goStep(step) } }, `step ${step}`), " "]);
      if (steps.length) card.append(el("div", { class: "places" }, links, steps.length > 12 && `and ${count(steps.length - 12)} more`));
      return card;
    }));
  }

  function scores(summary) {
    const named = Object.entries(summary.rewards || {}).map(([name, value]) => [name, number(value)]);
    const metrics = Object.entries(summary.metrics || {}).map(([name, value]) => [name, number(value)]);
    return [
      known(summary.reward) || named.length ? terms([["reward", number(summary.reward)], ...named]) : el("p", { class: "soft" }, "None was given."),
      metrics.length > 0 && [el("h3", {}, "Metrics"), terms(metrics)],
      summary.note && [el("h3", {}, "Note"), el("p", { class: "note-text" }, summary.note)],
    ];
  }

  /** Settings, usage and more of one step; `update(view)`. */
  function step() {
    const body = el("div", {});
    const element = section("Step", body);
    function update(view, index) {
      element.querySelector("h2").textContent = `Step ${index}`;
      if (!view) return void fill(body, el("p", { class: "soft" }, "Loading…"));
      const { line } = view;
      fill(body, terms([
        ["model", line.model], ["answered by", view.response_model !== line.model ? view.response_model : null],
        ["engine", view.engine], ["protocol", view.protocol], ["started", time(line.started)],
        ["messages repeated", view.repeated ? count(view.repeated) : null],
        ["prompt tokens", known(line.n_prompt) ? count(line.n_prompt) : null],
        ["mean logprob", known(line.mean_logprob) ? line.mean_logprob.toFixed(3) : null],
        ["finish", line.finish], ["stopped by", view.stop_reason], ["tools offered", joined(view.offered)],
        ["cost", cost(view.cost, view.currency)], ["advantage", number(view.advantage)], ["step id", copyable("the step's id", line.id)], ["response", copyable("the response's id", view.response_id)],
      ]), folded("Sampling", view.sampling), folded("Usage", view.usage), folded("Metadata", view.metadata));
    }
    return { element, update };
  }

  /** A value of the user's that opens on a click; null where there is none. */
  function folded(title, value) {
    if (!known(value) || (typeof value === "object" && !Object.keys(value).length)) return null;
    const box = el("details", { class: "fold" }, el("summary", {}, title));
    box.addEventListener("toggle", () => box.children.length === 1 && box.append(el("div", {}, contents(value))), { once: true });
    return box;
  }

  /** A value of the user's: texts of several lines, such as a patch, each under its name; all else as JSON. */
  function contents(value) {
    if (typeof value !== "object" || Array.isArray(value)) return json(value);
    const isLong = ([, one]) => typeof one === "string" && one.includes("\n");
    const entries = Object.entries(value);
    const others = entries.filter((entry) => !isLong(entry));
    return [
      others.length ? json(Object.fromEntries(others)) : null,
      entries.filter(isLong).map(([name, text]) => [el("h3", {}, name), json(text)]),
    ];
  }

  function about(outline) {
    const { summary } = outline;
    return section("Trajectory",
      terms([
        ["id", copyable("the trajectory's id", summary.id)], ["task", summary.task], ["group", summary.group], ["rollout", summary.index], ["attempt", summary.attempt],
        ["agents", joined(summary.agents)], ["models", joined(summary.models)], ["status", summary.status || "completed"],
        ["stopped by", summary.stop_reason], ["started", time(summary.started)], ["took", duration(summary.seconds)],
        ["calls", count(summary.calls || 0)], ["latency, sum", duration(summary.latency)], ["first token, mean", duration(summary.first_token)],
        ["tool runs", summary.tool_runs ? `${count(summary.tool_runs)}, ${count(summary.tool_errors || 0)} failed` : null],
        ["input tokens", count(summary.input_tokens)], ["output tokens", count(summary.output_tokens)],
        ["exchanges", outline.exchanges ? `${count(outline.exchanges)}, ${plural(outline.exchange_bytes, "byte")}` : null],
        ["trained tokens", count(summary.trained || 0)], ["cost", cost(summary.cost, summary.currency)],
      ]),
      folded("Task", outline.task), folded("Environment", outline.environment), folded("Metadata", outline.metadata));
  }

  /** The bytes of a step's request and answer, loaded when asked for. */
  async function raw(key, index, element) {
    fill(element, el("div", { class: "pane-inner" }, el("h2", {}, `Step ${index}, raw`), el("p", { class: "soft" }, "Loading…")));
    let found;
    try {
      found = await RT.data.raw(key, index);
    } catch (error) {
      return void fill(element, el("div", { class: "pane-inner" }, el("p", { class: "bad", role: "alert" }, error.message)));
    }
    const part = (title, value) => value !== null && value !== undefined && [el("h3", {}, title), json(value)];
    const bare = !known(found.request) && !known(found.response);
    fill(element, el("div", { class: "pane-inner" }, el("h2", {}, `Step ${index}, raw`),
      bare && el("p", { class: "soft" }, "The request and the answer were not kept as bytes; wrap the client with keep_bytes=True to keep them."),
      part("Request", found.request), part("Answer", found.response), part("The trajectory's line in the file", found.line)));
  }

  return { subtitle, findings, scores, step, about, raw };
})();
