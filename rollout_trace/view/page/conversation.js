// A step as a piece of the conversation: what is new in its request, its answer, and what was found about it.
RT.conversation = (() => {
  const { el, count, duration, number, plural, cost } = RT.dom;
  const { known } = RT.shown;

  const GRADES = { fatal: "bad", warning: "warn", info: "idle" };


  /** What the pieces of a conversation are made with: the outline, tool runs by call, trajectories by id, the painter of
   *  tokens, and how one goes to a step. */
  function makeContext(outline, painter, goStep) {
    const runs = new Map();
    for (const run of outline.tool_runs) if (run.tool_call_id) runs.set(run.tool_call_id, run);
    const family = new Map((outline.family || []).map((summary) => [summary.id, summary]));
    const told = new Map();
    for (const found of outline.findings || []) if (known(found.step) && !told.has(found.code)) told.set(found.code, found.step);
    return { outline, painter, goStep, runs, ran: new Map(), family, told, masks: RT.rows.masks(outline), reading: false };
  }

  /** A step that is loaded. `options.marked`: the first token that differs, for a comparison. */
  function step(view, context, options = {}) {
    const line = view.line;
    const ran = new Map();
    for (const run of view.tool_runs || []) if (run.tool_call_id) ran.set(run.tool_call_id, run);
    const inside = { ...context, ran };
    return frame(line, context.outline,
      seam(view, context),
      view.drift && drift(view.drift, context),
      (view.new || []).map((message) => RT.messages.message(message, inside)),
      answer(view, inside, options),
      findings(view, context),
      (view.children || []).map((id) => child(id, context)));
  }

  /** A step of which the outline alone is there. */
  function waiting(line, outline, problem) {
    const article = el("article", { class: "msg assistant" },
      el("header", {}, el("b", {}, "assistant"), el("span", { class: "meta" }, `step ${line.index}`)),
      el("div", { class: "content soft" }, line.excerpt || "…"),
      problem && el("div", { class: "bad", role: "alert" }, problem));
    return frame(line, outline, article);
  }

  function frame(line, outline, ...children) {
    const thread = (outline.threads || 1) > 1 ? ` threaded thread-${(line.thread || 0) % 5}` : "";
    const left = line.left_out ? " left-out" : "";
    return el("section", { class: `step${thread}${left}`, data: { step: line.index }, "aria-label": `step ${line.index}` },
      children);
  }

  function link(index, context, label) {
    return el("button", { class: "link", type: "button", on: { click: () => context.goStep(index) } }, label || `step ${index}`);
  }

  /** Where the request comes from, if not from the step before. */
  function seam(view, context) {
    const { line } = view;
    const before = context.outline.steps[line.index - 1];
    const continues = known(line.continues) ? line.continues : null;
    const thread = line.thread || 0;
    const named = [];
    if ((context.outline.threads || 1) > 1 && (!before || (before.thread || 0) !== thread)) named.push(el("b", {}, `conversation ${thread}`));
    if (line.agent && line.agent !== (before ? before.agent : context.outline.summary.name)) named.push(el("b", {}, line.agent));
    const first = known(view.shown_by) ? link(view.shown_by, context) : null;
    if (first && !(view.new || []).length) named.push(["the same prompt as ", first]);
    else if (before && continues === null) {
      named.push(first ? [`begins with ${plural(view.repeated, "message")} of `, first]
        : "begins anew: its request continues no earlier step");
    } else if (before && continues !== line.index - 1) {
      named.push([view.repeated ? `repeats ${plural(view.repeated, "message")} up to ` : "continues ", link(continues, context)]);
    }
    if (!named.length) return null;
    const parts = named.flatMap((part, i) => (i ? [" · ", part] : [part]));
    return el("div", { class: `seam${before ? " begins" : ""}` }, parts);
  }

  function answer(view, context, options) {
    const { line } = view;
    const failed = line.status && line.status !== "ok";
    const facts = [
      known(line.n_completion) && `${count(line.n_completion)} sampled`,
      known(line.latency) && duration(line.latency),
      known(line.first_token) && `first token ${duration(line.first_token)}`,
      line.finish,
      known(line.reward) && `reward ${number(line.reward)}`,
      known(view.cost) && cost(view.cost, view.currency),
    ].filter(Boolean);
    const name = (view.answer && view.answer.role) || "assistant";
    return el("article", { class: `msg assistant answer${failed ? " failed" : ""}`, "aria-label": `answer of step ${line.index}` },
      el("header", {}, el("b", {}, name), view.answer && RT.messages.copy(view.answer, "the answer"),
        el("span", { class: "meta" }, el("button", {
          class: "link stepname", type: "button", on: { click: () => context.goStep(line.index) },
        }, `step ${line.index}`), facts.map((fact) => ` · ${fact}`))),
      line.left_out && el("div", { class: "reason" }, `not trained: ${line.left_out.replaceAll("_", " ")}`),
      failed && el("div", { class: "bad" }, `${line.status}${view.error ? `: ${view.error}` : ""}`),
      el("div", { class: "content" }, parts(view, context, options)),
      attempts(view),
      view.exact_turn && el("div", { class: "note" }, view.exact_turn),
      view.token_issue && el("div", { class: "note warn" }, `tokens withheld: ${view.token_issue}`));
  }

  /** The parts of the answer, each with its tokens where these are found in it. */
  function parts(view, context, options) {
    const shown = view.answer ? view.answer.parts : [];
    const named = new Set(shown.map((part) => part.id).filter(Boolean));
    const others = (view.tool_runs || []).filter((run) => !named.has(run.tool_call_id)).map((run) =>
      el("div", { class: "part call" }, RT.messages.toolRun(run)));
    if (!view.tokens || !view.tokens.n || (context.reading && shown.length)) {
      if (!shown.length && !others.length) return el("div", { class: "soft" }, "no answer was recorded");
      return [shown.map((part) => RT.messages.part(part, null, context)), others];
    }
    const fragmentOptions = { mask: context.masks(view.line), marked: options.marked };
    const pieces = RT.tokens.arrange(shown, view.tokens);
    const apart = pieces.some((piece) => piece.part && piece.begin === null && piece.part.text);
    const nodes = pieces.map((piece) => {
      if (piece.begin === null) return RT.messages.part(piece.part, null, context);
      const whole = apart && piece.end - piece.begin > 4;
      const compact = !piece.part && !whole;
      const tokens = context.painter.fragment(view, piece.begin, piece.end, { ...fragmentOptions, compact });
      if (piece.part) return RT.messages.part(piece.part, tokens, context);
      return el("div", { class: whole ? "part sampled" : "part template" },
        whole && el("div", { class: "soft label" }, view.tokens.texts ? "as it was sampled" : "ids as they were sampled"), tokens);
    });
    return [nodes, others];
  }

  function attempts(view) {
    const list = view.attempts || [];
    if (list.length < 2 && !list.some((attempt) => attempt.error)) return null;
    return el("ol", { class: "attempts", "aria-label": "attempts" }, list.map((attempt) =>
      el("li", { class: attempt.error || attempt.status >= 400 ? "bad" : null },
        [known(attempt.status) && `status ${attempt.status}`, known(attempt.duration) && duration(attempt.duration), attempt.error]
          .filter(Boolean).join(" · ") || "attempt")));
  }

  /** A prompt that repeats an earlier completion in other ids: both sides. */
  function drift(found, context) {
    const side = (label, ids, shown) => el("div", { class: "side" }, el("span", { class: "soft" }, label),
      known(shown) && el("code", { class: "drifted" }, RT.tokens.visible({ texts: [shown] }, 0)),
      el("code", { class: "ids" }, `[${ids.join(", ")}]`));
    return el("aside", { class: "drift", "aria-label": "drift" },
      el("div", {}, el("b", {}, `Drift at token ${count(found.position)} of the prompt: ${found.kind.replaceAll("_", " ")}`), " · ",
        "it repeats ", link(found.previous, context), " in other ids, so a new training row begins here."),
      el("div", { class: "sides" }, side("sampled", found.expected, found.expected_text), side("sent again", found.found, found.found_text)),
      found.meaning && el("div", { class: "soft" }, found.meaning));
  }

  function finding(found) {
    return el("aside", { class: `finding ${GRADES[found.grade] || ""}` }, head(found), el("div", {}, found.message));
  }

  const head = (found) => [el("b", {}, found.code),
    el("span", { class: "soft" }, ` ${found.grade}${known(found.position) ? ` at position ${count(found.position)}` : ""} `)];

  /** The findings of a step. What a code means is written where it is first found; after that a click shows it. */
  function findings(view, context) {
    const told = new Set();
    return (view.findings || []).map((found) => {
      const first = !told.has(found.code) && (context.told.get(found.code) ?? view.line.index) === view.line.index;
      told.add(found.code);
      if (first) return finding(found);
      return el("details", { class: `finding again ${GRADES[found.grade] || ""}` },
        el("summary", {}, head(found)), el("div", {}, found.message));
    });
  }

  function child(id, context) {
    const summary = context.family.get(id);
    if (!summary || !summary.key) return el("div", { class: "child" }, "opened the trajectory ", el("code", {}, id), " (not in these files)");
    return el("div", { class: "child" }, "opened ", el("a", { href: RT.app.hash("t", [summary.key]) }, summary.name || summary.id),
      el("span", { class: "soft" }, ` · ${plural(summary.steps || 0, "step")} · ${summary.status || "completed"}` +
        (known(summary.reward) ? ` · reward ${number(summary.reward)}` : "")));
  }

  /** The text of a step, for a search: [texts]. */
  function texts(view) {
    const messages = [...(view.new || []), ...(view.answer ? [view.answer] : [])];
    const found = messages.flatMap((message) => message.parts.flatMap((part) => [part.name, part.text]));
    for (const run of view.tool_runs || []) found.push(run.name, run.arguments, run.result, run.error);
    for (const item of view.findings || []) found.push(item.code, item.message);
    if (view.error) found.push(view.error);
    return found.filter(Boolean);
  }

  return { makeContext, step, waiting, finding, texts };
})();
