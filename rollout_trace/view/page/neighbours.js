// The list that the reader came from: its address, and the trajectories before and after one.
RT.neighbours = (() => {
  let last = {};

  // The overview's address has what was searched and how it was sorted.
  window.addEventListener("hashchange", (event) => {
    const place = RT.app.parse(new URL(event.oldURL).hash);
    if (place.name === "") last = place.query;
  });

  /** The address of the list. */
  const list = () => RT.app.hash("", [], last);

  /** Opens the trajectory `way` places after the one with `key` in the list. */
  async function go(key, way) {
    try {
      const sort = last.sort || "";
      const { rows } = await RT.data.list({ query: last.q, sort: sort.replace(/^-/, ""), reverse: sort.startsWith("-"), limit: Infinity });
      const at = rows.findIndex((row) => row.key === key);
      const found = rows[at + way];
      if (at < 0) RT.app.banner("This trajectory is not in the list that was shown last.");
      else if (!found) RT.app.banner(`This is the ${way < 0 ? "first" : "last"} trajectory of the list.`);
      else RT.app.go(RT.app.hash("t", [found.key]));
    } catch (error) {
      RT.app.banner(error);
    }
  }

  return { list, go };
})();
