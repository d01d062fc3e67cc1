"use strict";
// The list that the reader came from: its address, and the trajectories before and after one.
window.RT = window.RT || {};

RT.neighbours = (() => {
  const PAGE = 200;
  const MOST = 20;
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
    const asked = { query: last.q || "", sort: last.sort || "", reverse: last.reverse === "1", limit: PAGE };
    let before = null;
    try {
      for (let page = 0; page < MOST; page += 1) {
        const { rows } = await RT.data.list({ ...asked, offset: page * PAGE });
        const at = rows.findIndex((row) => row.key === key);
        if (at >= 0) return await step(asked, page * PAGE + at + way, rows[at + way] || (way < 0 && at === 0 ? before : null));
        if (rows.length < PAGE) return RT.app.banner("This trajectory is not in the list that was shown last.");
        before = rows[rows.length - 1];
      }
      RT.app.banner(`This trajectory is not among the first ${PAGE * MOST} of the list.`);
    } catch (error) {
      RT.app.banner(error);
    }
  }

  async function step(asked, offset, row) {
    if (offset < 0) return RT.app.banner("This is the first trajectory of the list.");
    const found = row || (await RT.data.list({ ...asked, offset, limit: 1 })).rows[0];
    if (!found) return RT.app.banner("This is the last trajectory of the list.");
    RT.app.go(RT.app.hash("t", [found.key]));
  }

  return { list, go };
})();
