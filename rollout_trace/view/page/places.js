// The addresses of trajectories: #/t/KEY?step=12&token=3&color=entropy&pane=rows&reasoning=0&tools=0&read=1, and of the
// list that the reader came from.
RT.places = (() => {
  const PANES = { conversation: "Conversation", rows: "Rows", time: "Time", raw: "Raw", details: "Details" };
  const COLORS = ["logprob", "entropy", "ratio", "mask", "plain"];

  /** The colourings that an outline has something for. */
  const colorsOf = (outline) => COLORS.filter((name) => name !== "ratio" || outline.ratios.length > 0);

  /** The state that an address asks for. Values that cannot be are left out. */
  function stateOf(query) {
    const index = (value) => (/^\d{1,9}$/.test(value || "") ? Number(value) : null);
    const step = index(query.step);
    return {
      step,
      token: step === null ? null : index(query.token),
      color: COLORS.includes(query.color) ? query.color : "logprob",
      pane: Object.hasOwn(PANES, query.pane || "") ? query.pane : "conversation",
      reasoning: query.reasoning !== "0",
      tools: query.tools !== "0",
      read: query.read === "1",
    };
  }

  /** The address of a state, of which what is as at first is left out. */
  function address(name, path, { step, token, color, pane, reasoning, tools, read }) {
    return RT.app.hash(name, path, {
      step, token, color: color === "logprob" ? null : color, pane: pane === "conversation" ? null : pane,
      reasoning: reasoning === false ? "0" : null, tools: tools === false ? "0" : null, read: read ? "1" : null,
    });
  }

  let last = {};

  // The overview's address has what was searched and how it was sorted.
  window.addEventListener("hashchange", (event) => {
    const place = RT.app.parse(new URL(event.oldURL).hash);
    if (place.name === "") last = place.query;
  });

  const list = () => RT.app.hash("", [], last);

  /** What the address of a list says of its order: {sort, reverse}. */
  const orderOf = ({ sort = "" }) => ({ sort: sort.replace(/^-/, ""), reverse: sort.startsWith("-") });

  /** Opens the trajectory `way` places after the one with `key` in the list. */
  async function go(key, way) {
    try {
      const { rows } = await RT.data.list({ query: last.q, ...orderOf(last), limit: Infinity });
      const at = rows.findIndex((row) => row.key === key);
      const found = rows[at + way];
      if (at < 0) RT.app.banner("This trajectory is not in the list that was shown last.");
      else if (!found) RT.app.banner(`This is the ${way < 0 ? "first" : "last"} trajectory of the list.`);
      else RT.app.go(RT.app.hash("t", [found.key]));
    } catch (error) {
      RT.app.banner(error);
    }
  }

  return { PANES, COLORS, colorsOf, stateOf, address, list, orderOf, go };
})();
