// What is known of one token: the part of the side that follows the pointer.
RT.tokenDetail = (() => {
  const { el, fill, text, count } = RT.dom;
  const { known, nats, probability, section, terms } = RT.shown;

  const quoted = (value) => (known(value) ? `"${text(value).replaceAll("\n", "⏎").replaceAll("\t", "⇥")}"` : null);

  /** A part of the side with `show(found, pinned)`; `found` is what RT.tokens.Painter reports, or null. */
  function panel(outline) {
    const body = el("div", { class: "token-detail" });
    const heading = el("span", {}, "Token");
    const element = section("Token", body);
    element.querySelector("h2").replaceChildren(heading);
    const live = el("div", { class: "unseen", "aria-live": "polite" });
    element.append(live);

    function show(found, pinned) {
      if (!found) return void fill(body, el("p", { class: "soft" },
        "Point at a token to see what is known of it; click to keep it, then go on with the arrow keys."));
      const { view, token } = found;
      fill(heading, `Token ${count(token)} of step ${count(view.line.index)}${pinned ? " (kept)" : ""}`);
      fill(body, facts(outline, found), alternatives(view.tokens, token));
      if (pinned) live.textContent = spoken(view.tokens, token);
    }

    show(null, false);
    return { element, show };
  }

  function spoken(tokens, i) {
    const logprob = tokens.logprobs ? tokens.logprobs[i] : null;
    const name = tokens.texts ? quoted(tokens.texts[i]) : `id ${tokens.ids ? tokens.ids[i] : "unknown"}`;
    return known(logprob) ? `${name}, probability ${probability(logprob)}` : name;
  }

  function facts(outline, { view, token: i, options }) {
    const { tokens, line } = view;
    const column = (name) => (tokens[name] && known(tokens[name][i]) ? tokens[name][i] : null);
    const logprob = column("logprobs");
    const mask = options.mask ? options.mask(i) : null;
    return terms([
      ["text", tokens.texts ? el("code", {}, quoted(tokens.texts[i])) : null],
      ["id", column("ids")],
      ["logprob", known(logprob) ? nats(logprob) : null],
      ["probability", known(logprob) ? probability(logprob) : null],
      ["entropy", known(column("entropy")) ? `≥ ${nats(column("entropy"))} nats` : null],
      ["ratio, trainer to engine", known(column("log_ratios")) ? RT.shown.ratio(column("log_ratios")) : null],
      ["mask", known(line.row) ? mask : `no row (${line.left_out || "left out"})`],
      ["row, position", known(line.row) && known(line.begin) ? `${line.row}, ${count(line.begin + i)}` : null],
      ["policy version", view.policy_version],
      ["advantage", known(view.advantage) ? RT.dom.number(view.advantage) : null],
      ["logprobs are", view.logprobs_mode],
      ["ids from", view.token_source],
      ["texts from", outline.token_texts],
    ]);
  }

  /** What could have been sampled, with bars. */
  function alternatives(tokens, i) {
    const list = tokens.alternatives && tokens.alternatives[i];
    if (!list || !list.length) return null;
    const sampled = tokens.ids ? tokens.ids[i] : null;
    const rows = list.map(([shown, id, logprob]) => {
      const same = known(id) && known(sampled) ? id === sampled : tokens.texts && shown === tokens.texts[i];
      const width = known(logprob) ? Math.max(1, 100 * Math.exp(logprob)) : 0;
      return [
        el("dt", { class: same ? "sampled" : null, title: known(id) ? `id ${id}` : null },
          el("code", {}, quoted(shown) || `id ${id}`), same && el("span", { class: "soft" }, " sampled")),
        el("dd", {}, el("i", { class: same ? "bar sampled" : "bar", style: { width: `${width}%` } }),
          el("span", { class: "num" }, known(logprob) ? probability(logprob) : "-")),
      ];
    });
    return [el("h3", {}, "Alternatives"), el("dl", { class: "alternatives" }, rows)];
  }

  return { panel };
})();
