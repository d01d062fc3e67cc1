// Calls, attempts, tool runs and sub-agents on a time axis, in lanes where they overlap.
RT.timeline = (() => {
  const LANE = 22;
  const KINDS = [["agent", "sub-agents"], ["call", "calls"], ["attempt", "attempts"], ["tool", "tools"]];

  const event = (kind, begin, seconds, label, facts, more) =>
    ({ kind, begin, end: begin + (seconds || 0), label, title: dotted(facts), ...more });

  /** The steps of each call, as one event a call. */
  function calls(steps) {
    const found = [];
    let last = null;
    for (const { index, started, latency, first_token, status, call_id } of steps) {
      if (!known(started)) continue;
      if (found.length && call_id === last) {
        found.at(-1).title += `, step ${index}`;
        continue;
      }
      last = call_id;
      const facts = [`step ${index}`, duration(latency), known(first_token) && `first token ${duration(first_token)}`];
      const first = known(first_token) && latency ? first_token / latency : null;
      found.push(event("call", started, latency, index, facts, { step: index, bad: status !== "ok", first }));
    }
    return found;
  }

  /** What happened when: [{kind, begin, end, label, title, step, key, bad}], by begin. */
  function events({ summary, steps, tool_runs, family }) {
    const tools = tool_runs.map(({ name = "tool", started, duration: seconds, error: bad, step }) =>
      event("tool", started, seconds, name, [name, duration(seconds), bad && "failed"], { step, bad }));
    const children = family.filter((one) => one.parent === summary.id);
    const agents = children.map(({ name, started, seconds, key, status }) =>
      event("agent", started, seconds, name, [name, duration(seconds)], { key, bad: status === "failed" }));
    return sortedBy([...calls(steps), ...tools, ...agents].filter((one) => known(one.begin)), (one) => one.begin);
  }

  /** The attempts of a call that had several, where its step is loaded. */
  function attempts(view) {
    if (!view || view.attempts.length < 2) return [];
    return view.attempts.filter((one) => known(one.started)).map(({ started, duration: seconds, status, error }) => {
      const facts = ["attempt", known(status) && `status ${status}`, duration(seconds), error];
      const more = { step: view.line.index, bad: Boolean(error) || status >= 400 };
      return event("attempt", started, seconds, known(status) ? status : "try", facts, more);
    });
  }

  /** Gives each event the first lane in which nothing else is at its time. Returns the number of lanes. */
  function pack(list) {
    const ends = [];
    for (const one of list) {
      const free = ends.findIndex((end) => end <= one.begin + 1e-6);
      one.lane = free < 0 ? ends.length : free;
      ends[one.lane] = Math.max(one.end, one.begin + 1e-6);
    }
    return ends.length;
  }

  /** At most `limit` events, around those of a step. */
  function around(list, step, limit) {
    const at = list.findIndex((one) => one.step === step);
    const first = Math.max(0, Math.min(list.length - limit, at - (limit >> 1)));
    return list.slice(first, first + limit);
  }

  function draw(context, step, limit, loaded) {
    const all = events(context.outline);
    if (!all.length) return el("p.soft", "No times were recorded.");
    const near = around(all, step, limit);
    const steps = new Set(near.filter((one) => one.kind === "call").map((one) => one.step));
    const shown = [...near, ...[...steps].flatMap((index) => attempts(loaded(index)))];
    const begin = least(shown.map((one) => one.begin));
    const span = Math.max(most(shown.map((one) => one.end)) - begin, 1e-6);
    const zero = context.outline.summary.started ?? all[0].begin;
    return el("div.timeline",
      KINDS.map(([kind, name]) => lanes(shown.filter((one) => one.kind === kind), name, begin, span, step, context)),
      axis(begin - zero, span),
      near.length < all.length && el("p.soft", `${count(near.length)} of ${count(all.length)}, around step ${step}`));
  }

  function lanes(list, name, begin, span, step, context) {
    if (!list.length) return null;
    const height = `${pack(list) * LANE + 2}px`;
    const bars = list.map((one) => {
      const go = () => known(one.step) && context.goStep(one.step);
      const run = one.key ? () => RT.app.go(RT.app.hash("t", [one.key])) : go;
      return el("button", {
        class: `bar ${one.kind}${one.bad ? " failed" : ""}${one.step === step ? " current" : ""}`, type: "button",
        title: one.title, "aria-label": one.title, on: { click: run }, style: {
          left: `${(100 * (one.begin - begin)) / span}%`, width: `${(100 * (one.end - one.begin)) / span}%`,
          top: `${one.lane * LANE + 2}px`, ...(one.first && { "--first": `${100 * Math.min(1, one.first)}%` }),
        },
      }, el("span", one.label));
    });
    return [el("div.lane-name", name), el("div.lanes", { style: { height } }, bars)];
  }

  function axis(offset, span) {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      // Far from the beginning, how much later than the left end: the whole time would be the same at each tick.
      const far = share > 0 && offset > 20 * span;
      return el("span", { style: { left: `${100 * share}%` } },
        far ? `+${duration(share * span)}` : duration(offset + share * span));
    });
    return el("div.axis.num", { "aria-hidden": "true" }, ticks);
  }

  /** The part of the side; `update(step)` draws it around a step. `loaded(i)`: the step, or null. */
  function side(context, loaded) {
    const body = el("div");
    const update = (step) => fill(body, draw(context, step, 60, loaded));
    return { element: section("Time", body), update };
  }

  const pane = (context, step, loaded) =>
    el("div.pane-inner.wide", el("h2", "Time"), draw(context, step, 300, loaded));

  return { side, pane };
})();
