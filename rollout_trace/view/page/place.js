// The places inside a trajectory, as addresses: #/t/KEY?step=12&token=3&color=entropy&pane=rows&reasoning=0&tools=0
RT.place = (() => {
  const PANES = [["conversation", "Conversation"], ["rows", "Rows"], ["time", "Time"], ["raw", "Raw"], ["details", "Details"]];
  const COLORS = [["logprob", "logprob"], ["entropy", "entropy"], ["ratio", "ratio"], ["mask", "mask"], ["plain", "plain"]];

  /** The colourings that an outline has something for. */
  const colorsOf = (outline) => COLORS.filter(([name]) => name !== "ratio" || outline.ratios.length > 0);

  /** The state that an address asks for. Values that cannot be are left out. */
  function stateOf(query) {
    const index = (value) => (/^\d{1,9}$/.test(value || "") ? Number(value) : null);
    const one = (choices, value) => (choices.some(([name]) => name === value) ? value : choices[0][0]);
    return {
      step: index(query.step),
      token: index(query.step) === null ? null : index(query.token),
      color: one(COLORS, query.color),
      pane: one(PANES, query.pane),
      reasoning: query.reasoning !== "0",
      tools: query.tools !== "0",
      read: query.read === "1",
    };
  }

  function address(key, { step, token, color, pane, reasoning, tools, read }) {
    return RT.app.hash("t", [key], {
      step, token, color: color === "logprob" ? null : color, pane: pane === "conversation" ? null : pane,
      reasoning: reasoning ? null : "0", tools: tools ? null : "0", read: read ? "1" : null,
    });
  }

  return { PANES, COLORS, colorsOf, stateOf, address };
})();
