// A step as a piece of the conversation: what is new in its request, its answer, and what was found about it. Messages
// and their parts: texts, reasoning, tool calls with their runs, media.
RT.conversation = (() => {
  const RASTER = /^data:image\/(png|jpeg|gif|webp|avif|bmp);base64,/i;
  const ROLES = ["system", "developer", "user", "assistant", "tool", "function"];

  const runsByCall = (runs) => new Map(runs.filter((run) => run.tool_call_id).map((run) => [run.tool_call_id, run]));

  /** What the pieces of a conversation are made with: the outline, tool runs by call, trajectories by id, the painter
   *  of tokens, and how one goes to a step. */
  function makeContext(outline, painter, goStep) {
    const family = new Map(outline.family.map((summary) => [summary.id, summary]));
    const placed = outline.findings.filter((found) => known(found.step));
    const told = new Map(placed.toReversed().map((found) => [found.code, found.step]));
    const runs = runsByCall(outline.tool_runs);
    return { outline, painter, goStep, runs, family, told, masks: RT.rows.masks(outline), reading: false };
  }

  const stepLink = (index, context, attributes) => link(`step ${index}`, () => context.goStep(index), attributes);

  /** A step that is loaded. `marked`: the first token that differs, for a comparison. */
  function step(view, context, marked) {
    const inside = { ...context, ran: runsByCall(view.tool_runs) };
    return frame(view.line, context.outline,
      seam(view, context),
      view.drift && drift(view.drift, context),
      view.new.map((one) => message(one, inside)),
      answer(view, inside, marked),
      findings(view, context),
      view.children.map((id) => child(id, context)));
  }

  /** A step of which the outline alone is there. */
  function waiting(line, outline, problem) {
    return frame(line, outline, el("article.msg.assistant",
      el("header", el("b", "assistant"), el("span.meta", `step ${line.index}`)),
      el("div.content.soft", line.excerpt || "…"),
      problem && el("div.bad", { role: "alert" }, problem)));
  }

  function frame({ index, thread, left_out }, { threads }, ...children) {
    const threaded = threads > 1 ? ` threaded thread-${thread % 5}` : "";
    const name = `step${threaded}${left_out ? " left-out" : ""}`;
    return el("section", { class: name, data: { step: index }, "aria-label": `step ${index}` }, children);
  }

  /** Where the request comes from, if not from the step before. */
  function seam({ line, shown_by, repeated, new: fresh }, context) {
    const { outline } = context;
    const before = outline.steps[line.index - 1];
    const named = [];
    const isOther = outline.threads > 1 && (!before || before.thread !== line.thread);
    if (isOther) named.push(el("b", `conversation ${line.thread}`));
    if (line.agent && line.agent !== (before ? before.agent : outline.summary.name)) named.push(el("b", line.agent));
    const first = known(shown_by) && stepLink(shown_by, context);
    if (first && !fresh.length) named.push(["the same prompt as ", first]);
    else if (before && !known(line.continues)) {
      named.push(first ? [`begins with ${plural(repeated, "message")} of `, first]
        : "begins anew: its request continues no earlier step");
    } else if (before && line.continues !== line.index - 1) {
      const how = repeated ? `repeats ${plural(repeated, "message")} up to ` : "continues ";
      named.push([how, stepLink(line.continues, context)]);
    }
    const parts = named.flatMap((part, i) => (i ? [" · ", part] : [part]));
    return parts.length > 0 && el("div", { class: `seam${before ? " begins" : ""}` }, parts);
  }

  function answer(view, context, marked) {
    const { line } = view;
    const failed = line.status !== "ok";
    const facts = [
      known(line.n_completion) && `${count(line.n_completion)} sampled`,
      known(line.latency) && duration(line.latency),
      known(line.first_token) && `first token ${duration(line.first_token)}`,
      line.finish,
      known(line.reward) && `reward ${number(line.reward)}`,
      known(view.cost) && cost(view.cost, view.currency),
    ].filter(Boolean);
    const { role = "assistant" } = view.answer || {};
    const kind = failed ? "article.msg.assistant.answer.failed" : "article.msg.assistant.answer";
    return el(kind, { "aria-label": `answer of step ${line.index}` },
      el("header", el("b", role), view.answer && copy(view.answer, "the answer"),
        el("span.meta", stepLink(line.index, context, { class: "link stepname" }), facts.map((fact) => ` · ${fact}`))),
      line.left_out && el("div.reason", `not trained: ${line.left_out.replaceAll("_", " ")}`),
      failed && el("div.bad", `${line.status}${view.error ? `: ${view.error}` : ""}`),
      el("div.content", answerParts(view, context, marked)),
      attempts(view),
      view.exact_turn && el("div.note", view.exact_turn),
      view.token_issue && el("div.note.warn", `tokens withheld: ${view.token_issue}`));
  }

  /** The parts of the answer, each with its tokens where these are found in it. */
  function answerParts(view, context, marked) {
    const shown = view.answer ? view.answer.parts : [];
    const named = new Set(shown.map((one) => one.id).filter(Boolean));
    const runs = view.tool_runs.filter((run) => !named.has(run.tool_call_id));
    const others = runs.map((run) => el("div.part.call", toolRun(run)));
    if (!view.tokens || !view.tokens.n || (context.reading && shown.length)) {
      if (!shown.length && !others.length) return el("div.soft", "no answer was recorded");
      return [shown.map((one) => part(one, null, context)), others];
    }
    const mask = context.masks(view.line);
    const pieces = RT.tokens.arrange(shown, view.tokens);
    const apart = pieces.some((piece) => piece.part && piece.begin === null && piece.part.text);
    const nodes = pieces.map((piece) => {
      if (piece.begin === null) return part(piece.part, null, context);
      const whole = apart && piece.end - piece.begin > 4;
      const compact = !piece.part && !whole;
      const tokens = context.painter.fragment(view, piece.begin, piece.end, { mask, marked, compact });
      if (piece.part) return part(piece.part, tokens, context);
      return el("div", { class: whole ? "part sampled" : "part template" },
        whole && el("div.soft.label", view.tokens.texts ? "as it was sampled" : "ids as they were sampled"), tokens);
    });
    return [nodes, others];
  }

  function attempts({ attempts: list }) {
    if (list.length < 2 && !list.some((attempt) => attempt.error)) return null;
    return el("ol.attempts", { "aria-label": "attempts" }, list.map(({ status, duration: seconds, error }) =>
      el("li", { class: (error || status >= 400) && "bad" },
        dotted([known(status) && `status ${status}`, known(seconds) && duration(seconds), error]) || "attempt")));
  }

  /** A prompt that repeats an earlier completion in other ids: both sides. */
  function drift(found, context) {
    const side = (label, ids, shown) => el("div.side", soft(label),
      known(shown) && el("code.drifted", RT.tokens.visible({ texts: [shown] }, 0)),
      el("code.ids", `[${ids.join(", ")}]`));
    return el("aside.drift", { "aria-label": "drift" },
      el("div", el("b", `Drift at token ${count(found.position)} of the prompt: ${found.kind.replaceAll("_", " ")}`),
        " · it repeats ", stepLink(found.previous, context), " in other ids, so a new training row begins here."),
      el("div.sides",
        side("sampled", found.expected, found.expected_text), side("sent again", found.found, found.found_text)),
      found.meaning && el("div.soft", found.meaning));
  }

  const finding = (found) =>
    el("aside", { class: `finding ${toneOfGrade(found.grade)}` }, head(found), el("div", found.message));

  const head = ({ code, grade, position }) =>
    [el("b", code), soft(` ${grade}${known(position) ? ` at position ${count(position)}` : ""} `)];

  /** The findings of a step. What a code means is written where it is first found; after that a click shows it. */
  function findings(view, context) {
    const told = new Set();
    return view.findings.map((found) => {
      const first = !told.has(found.code) && (context.told.get(found.code) ?? view.line.index) === view.line.index;
      told.add(found.code);
      if (first) return finding(found);
      return el("details", { class: `finding again ${toneOfGrade(found.grade)}` },
        el("summary", head(found)), el("div", found.message));
    });
  }

  function child(id, context) {
    const summary = context.family.get(id);
    if (!summary) return el("div.child", "opened the trajectory ", el("code", id), " (not in these files)");
    const { key, name, steps, status, reward } = summary;
    return el("div.child", "opened ", el("a", { href: RT.app.hash("t", [key]) }, name),
      soft(` · ${dotted([plural(steps, "step"), status, known(reward) && `reward ${number(reward)}`])}`));
  }

  // Messages and their parts.

  function message(shown, context) {
    const isTool = shown.role === "tool";
    const run = context.runs.get(shown.tool_call_id) || {};
    const meta = dotted([shown.name || run.name, known(run.duration) && duration(run.duration), run.error && "error"]);
    const role = ROLES.includes(shown.role) ? shown.role : "other";
    return el("article", { class: `msg ${role}`, "aria-label": `${shown.role} message` },
      el("header", el("b", shown.role), copy(shown, "the message"), el("span.meta", meta)),
      isTool && el("div.stub.tools-stub", "result of a tool, hidden (o shows it)"),
      el("div.content",
        shown.parts.map((piece) => part(piece, null, { ...context, reading: context.reading && !isTool }))));
  }

  /** A button that copies the texts of a message; null where it has none. */
  function copy(shown, what) {
    const texts = shown.parts.filter((piece) => piece.text && !isMedia(piece)).map((piece) =>
      (piece.kind === "tool_call" ? `${piece.name || "tool"} ` : "") + piece.text);
    return texts.length > 0 && copier(what, () => texts.join("\n\n"));
  }

  /** A part of a message; `tokens`: an element that takes the place of its text, or null. */
  function part(shown, tokens, context) {
    if (shown.kind === "tool_call") return call(shown, tokens, context);
    if (isMedia(shown)) return media(shown);
    if (shown.kind === "json") return el("div.part", json(shown.text));
    const body = tokens || (context.reading ? RT.markdown.render : long)(shown.text);
    if (shown.kind === "reasoning") {
      return [
        el("div.stub.reasoning-stub", `reasoning, hidden: ${count(shown.text.length)} characters (r shows it)`),
        el("div.part.reasoning", { role: "group", "aria-label": "reasoning" }, body),
      ];
    }
    return el("div", { class: `part ${shown.kind}` }, shown.kind === "refusal" && el("b.warn", "refusal "), body);
  }

  function call(shown, tokens, context) {
    const run = shown.id && context.ran.get(shown.id);
    const name = shown.name || "a tool";
    return [
      el("div.stub.tools-stub", `calls ${name}, hidden (o shows it)`),
      el("div.part.call", { role: "group", "aria-label": `call of ${name}` },
        el("b", { title: shown.id && `tool call ${shown.id}` }, shown.name || "tool"), " ",
        tokens || long(shown.text, { tag: "span", name: "arguments" }), " ",
        shown.text && copier("the arguments", () => shown.text), run && toolRun(run, false)),
    ];
  }

  function toolRun(run, named = true) {
    const { name, duration: seconds, error, arguments: given, result } = run;
    const ran = known(seconds) ? `ran ${duration(seconds)}` : "ran";
    return el("details", { class: `run${error ? " failed" : ""}`, open: Boolean(error) },
      el("summary", dotted([named && (name || "tool"), ran, error && "failed"])),
      named && known(given) && json(given),
      error && el("div.bad", error),
      known(result) ? json(result) : !error && el("div.soft", "no result was recorded"));
  }

  /** An image whose bytes are in the file; anything else is named and never loaded. */
  function media({ kind, text: source, name }) {
    if (kind === "image" && RASTER.test(source)) {
      const type = name || source.slice(5, source.indexOf(";"));
      return el("img.part.image", { src: source, alt: `image of the message (${type})`, decoding: "async" });
    }
    const isInside = /^data:/i.test(source);
    return el("div.part.media", el("b", kind), ` ${name || ""} `,
      soft(isInside ? `${count(source.length)} characters of data` : `not loaded: ${source.slice(0, 300)}`));
  }

  function texts(view) {
    const messages = view.answer ? [...view.new, view.answer] : view.new;
    return [
      ...messages.flatMap((one) => one.parts.flatMap((piece) => [piece.name, piece.text])),
      ...view.tool_runs.flatMap((run) => [run.name, run.arguments, run.result, run.error]),
      ...view.findings.flatMap((found) => [found.code, found.message]), view.error,
    ];
  }

  return { makeContext, step, stepLink, waiting, finding, texts };
})();
