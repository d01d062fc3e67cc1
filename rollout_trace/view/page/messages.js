// Messages and their parts: texts, reasoning, tool calls with their runs, media.
RT.messages = (() => {
  const { el, count, duration } = RT.dom;
  const { copier, known, long } = RT.shown;
  const RASTER = /^data:image\/(png|jpeg|gif|webp|avif|bmp);base64,/i;

  /** A message of a request. `context.runs`: tool call's id to its run. */
  function message(shown, context) {
    const run = shown.tool_call_id ? context.runs.get(shown.tool_call_id) : null;
    const name = shown.name || (run && run.name);
    const meta = [name, run && known(run.duration) && duration(run.duration), run && run.error && "error"].filter(Boolean);
    return el("article", { class: `msg ${role(shown.role)}`, "aria-label": `${shown.role} message` },
      el("header", {}, el("b", {}, shown.role), copy(shown, "the message"), el("span", { class: "meta" }, meta.join(" · "))),
      shown.role === "tool" && el("div", { class: "stub tools-stub" }, "result of a tool, hidden (o shows it)"),
      el("div", { class: "content" }, shown.parts.map((piece) => part(piece, null, shown.role === "tool" ? { ...context, reading: false } : context))));
  }

  /** A button that copies the texts of a message; null where it has none. */
  function copy(shown, what) {
    const texts = shown.parts.filter((piece) => piece.text && piece.kind !== "image" && piece.kind !== "audio" && piece.kind !== "file");
    return texts.length > 0 && copier(what, () => texts.map((piece) => (piece.kind === "tool_call" ? `${piece.name || "tool"} ` : "") + piece.text).join("\n\n"));
  }

  const ROLES = ["system", "developer", "user", "assistant", "tool", "function"];
  const role = (name) => (ROLES.includes(name) ? name : "other");

  /** A part of a message; `tokens`: an element that takes the place of its text, or null. */
  function part(shown, tokens, context) {
    if (shown.kind === "tool_call") return call(shown, tokens, context);
    if (shown.kind === "image" || shown.kind === "audio" || shown.kind === "file") return media(shown);
    if (shown.kind === "reasoning") {
      return [
        el("div", { class: "stub reasoning-stub" }, `reasoning, hidden: ${count(shown.text.length)} characters (r shows it)`),
        el("div", { class: "part reasoning", role: "group", "aria-label": "reasoning" }, tokens || body(shown.text, context)),
      ];
    }
    if (shown.kind === "json") return el("div", { class: "part" }, long(shown.text, { tag: "pre", name: "json" }));
    return el("div", { class: `part ${shown.kind}` },
      shown.kind === "refusal" && el("b", { class: "warn" }, "refusal "), tokens || body(shown.text, context));
  }

  const body = (value, context) => (context.reading ? RT.markdown.render : long)(value || "");

  function call(shown, tokens, context) {
    const run = shown.id ? context.ran.get(shown.id) : null;
    return [
      el("div", { class: "stub tools-stub" }, `calls ${shown.name || "a tool"}, hidden (o shows it)`),
      el("div", { class: "part call", role: "group", "aria-label": `call of ${shown.name || "a tool"}` },
        el("b", { title: shown.id ? `tool call ${shown.id}` : null }, shown.name || "tool"), " ",
        tokens || long(shown.text || "", { tag: "span", name: "arguments" }), " ",
        shown.text && copier("the arguments", () => shown.text), run && toolRun(run, false)),
    ];
  }

  /** How a tool ran. */
  function toolRun(run, named = true) {
    const facts = [
      named && (run.name || "tool"), known(run.duration) ? `ran ${duration(run.duration)}` : "ran", run.error && "failed",
    ].filter(Boolean).join(" · ");
    const result = known(run.result) ? run.result : null;
    return el("details", { class: `run${run.error ? " failed" : ""}`, open: Boolean(run.error) },
      el("summary", {}, facts),
      named && known(run.arguments) && long(run.arguments, { tag: "pre", name: "json" }),
      run.error && el("div", { class: "bad" }, run.error),
      result !== null && long(result, { tag: "pre", name: "json" }),
      result === null && !run.error && el("div", { class: "soft" }, "no result was recorded"));
  }

  /** An image whose bytes are in the file; anything else is named and never loaded. */
  function media(shown) {
    if (shown.kind === "image" && RASTER.test(shown.text)) {
      const type = shown.name || shown.text.slice(5, shown.text.indexOf(";"));
      return el("img", { class: "part image", src: shown.text, alt: `image of the message (${type})`, decoding: "async" });
    }
    const inside = /^data:/i.test(shown.text);
    const where = inside ? `${count(shown.text.length)} characters of data` : shown.text.slice(0, 300);
    return el("div", { class: "part media" }, el("b", {}, shown.kind), ` ${shown.name || ""} `,
      el("span", { class: "soft" }, inside ? where : `not loaded: ${where}`));
  }

  return { message, part, toolRun, copy };
})();
