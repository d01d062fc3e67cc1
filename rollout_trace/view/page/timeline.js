// Calls, attempts, tool runs and sub-agents on a time axis, in lanes where they overlap.
RT.timeline = (() => {
  const { el, fill, count, duration } = RT.dom;
  const { known, section } = RT.shown;
  const LANE = 22;

  /** What happened when: [{kind, begin, end, label, title, step, key, bad}], by begin. */
  function events(outline) {
    const found = [];
    let call = null;
    for (const line of outline.steps) {
      if (!known(line.started)) continue;
      if (call && line.call_id === call.id) {
        call.event.title += `, step ${line.index}`;
        continue;
      }
      const event = {
        kind: "call", begin: line.started, end: line.started + (line.latency || 0), label: `${line.index}`, step: line.index,
        title: `step ${line.index} · ${duration(line.latency)}${known(line.first_token) ? ` · first token ${duration(line.first_token)}` : ""}`,
        bad: line.status && line.status !== "ok", first: known(line.first_token) && line.latency ? line.first_token / line.latency : null,
      };
      call = { id: line.call_id, event };
      found.push(event);
    }
    for (const run of outline.tool_runs) {
      if (!known(run.started)) continue;
      found.push({
        kind: "tool", begin: run.started, end: run.started + (run.duration || 0), label: run.name || "tool", step: known(run.step) ? run.step : null,
        title: `${run.name || "tool"} · ${duration(run.duration)}${run.error ? " · failed" : ""}`, bad: Boolean(run.error),
      });
    }
    for (const one of outline.family || []) {
      if (one.parent !== outline.summary.id || !known(one.started)) continue;
      found.push({
        kind: "agent", begin: one.started, end: one.started + (one.seconds || 0), label: one.name || "agent", key: one.key,
        title: `${one.name || "agent"} · ${duration(one.seconds)}`, bad: one.status === "failed",
      });
    }
    return found.sort((a, b) => a.begin - b.begin);
  }

  /** The attempts of a call that had several, where its step is loaded. */
  function attempts(view) {
    const list = (view && view.attempts) || [];
    if (list.length < 2) return [];
    return list.filter((one) => known(one.started)).map((one) => ({
      kind: "attempt", begin: one.started, end: one.started + (one.duration || 0), label: known(one.status) ? String(one.status) : "try",
      step: view.line.index, title: `attempt · ${known(one.status) ? `status ${one.status} · ` : ""}${duration(one.duration)}${one.error ? ` · ${one.error}` : ""}`,
      bad: Boolean(one.error) || one.status >= 400,
    }));
  }

  /** Gives each event the first lane in which nothing else is at its time. Returns the number of lanes. */
  function pack(list) {
    const ends = [];
    for (const event of list) {
      let lane = ends.findIndex((end) => end <= event.begin + 1e-6);
      if (lane < 0) lane = ends.length;
      ends[lane] = Math.max(event.end, event.begin + 1e-6);
      event.lane = lane;
    }
    return ends.length;
  }

  /** At most `limit` events, around those of a step. */
  function around(list, step, limit) {
    if (list.length <= limit) return list;
    const at = Math.max(0, list.findIndex((event) => event.step === step));
    const first = Math.max(0, Math.min(list.length - limit, at - (limit >> 1)));
    return list.slice(first, first + limit);
  }

  const KINDS = [["agent", "sub-agents"], ["call", "calls"], ["attempt", "attempts"], ["tool", "tools"]];

  function draw(context, step, limit, loaded) {
    const all = events(context.outline);
    if (!all.length) return el("p", { class: "soft" }, "No times were recorded.");
    const shown = around(all, step, limit);
    const steps = [...new Set(shown.filter((one) => one.kind === "call").map((one) => one.step))];
    shown.push(...steps.flatMap((index) => attempts(loaded(index))));
    const begin = shown.reduce((low, one) => Math.min(low, one.begin), Infinity);
    const end = shown.reduce((high, one) => Math.max(high, one.end), -Infinity);
    const span = Math.max(end - begin, 1e-6);
    const zero = context.outline.summary.started ?? all[0].begin;
    return el("div", { class: "timeline" },
      KINDS.map(([kind, name]) => lanes(shown.filter((one) => one.kind === kind), name, begin, span, step, context)),
      axis(begin - zero, span),
      shown.length < all.length && el("p", { class: "soft" }, `${count(shown.length)} of ${count(all.length)}, around step ${step}`));
  }

  function lanes(list, name, begin, span, step, context) {
    if (!list.length) return null;
    const n = pack(list);
    const box = el("div", { class: "lanes" });
    box.style.height = `${n * LANE + 2}px`;
    for (const event of list) {
      const run = () => (event.key ? RT.app.go(RT.app.hash("t", [event.key])) : known(event.step) && context.goStep(event.step));
      const bar = el("button", {
        class: `bar ${event.kind}${event.bad ? " failed" : ""}${event.step === step ? " current" : ""}`, type: "button",
        title: event.title, "aria-label": event.title, on: { click: run },
      }, el("span", {}, event.label));
      bar.style.left = `${(100 * (event.begin - begin)) / span}%`;
      bar.style.width = `${(100 * (event.end - event.begin)) / span}%`;
      bar.style.top = `${event.lane * LANE + 2}px`;
      if (event.first) bar.style.setProperty("--first", `${100 * Math.min(1, event.first)}%`);
      box.append(bar);
    }
    return [el("div", { class: "lane-name" }, name), box];
  }

  function axis(offset, span) {
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      // Far from the beginning, how much later than the left end: the whole time would be the same at each tick.
      const far = share > 0 && offset > 20 * span;
      const tick = el("span", {}, far ? `+${duration(share * span)}` : duration(offset + share * span));
      tick.style.left = `${100 * share}%`;
      return tick;
    });
    return el("div", { class: "axis num", "aria-hidden": "true" }, ticks);
  }

  /** The part of the side; `update(step)` draws it around a step. */
  function side(context, loaded) {
    const body = el("div", {});
    const update = (step) => fill(body, draw(context, step, 60, loaded));
    return { element: section("Time", body), update };
  }

  function pane(context, step, loaded) {
    return el("div", { class: "pane-inner wide" }, el("h2", {}, "Time"), draw(context, step, 300, loaded));
  }

  return { side, pane, events, pack };
})();
