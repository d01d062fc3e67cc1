"use strict";
// Where the page gets its data: from the server below its own address, or from JSON inside the page. Both providers
// have the same methods; each returns a promise, which is rejected with an Error whose message is a sentence.
RT.data = (() => {
  const PAGE_OF_STEPS = 50;
  const KEPT = 20;

  function server() {
    async function get(path, query) {
      const kept = Object.entries(query || {}).filter(([, v]) => v !== null && v !== undefined && v !== "" && v !== false);
      const tail = new URLSearchParams(kept.map(([k, v]) => [k, v === true ? "1" : String(v)])).toString();
      return answer(fetch(`api/${path}${tail ? "?" + tail : ""}`, { cache: "no-store", credentials: "same-origin" }));
    }

    async function post(path, body) {
      return answer(fetch(`api/${path}`, {
        method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      }));
    }

    async function answer(fetched) {
      let response;
      try {
        response = await fetched;
      } catch {
        throw new Error("the page's server does not answer: is rollout-trace view still running?");
      }
      const body = await response.json().catch(() => null);
      if (!response.ok) throw new Error((body && body.error) || `the page's server answered with status ${response.status}`);
      if (body === null) throw new Error("the page's server answered with something else than JSON");
      return body;
    }

    return {
      info: () => get("info"),
      list: ({ query = "", sort = "", reverse = false, offset = 0, limit = 100 }) =>
        get("list", { query, sort, reverse, offset, limit }),
      aggregate: ({ query = "" }) => get("aggregate", { query }),
      trajectory: (key) => get("trajectory", { key }),
      steps: (key, first, end) => get("steps", { key, first, end: Math.min(end, first + PAGE_OF_STEPS) }),
      raw: (key, step) => get("raw", { key, step }),
      annotate: (key, values) => post("annotate", { key, values }),
    };
  }

  /** What an element of compressed JSON holds. */
  async function unpacked(element) {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /** The data inside the page: {info, summaries: [Summary + key], names}, and an element a trajectory: {file, outline, steps,
   *  raw?}. The latest ones stay unpacked. */
  function embedded(element) {
    const loaded = unpacked(element).then((data) => ({ ...data, summaries: data.summaries.map(RT.defaults.summary) }));
    const kept = new Map();

    async function matching(query) {
      const { summaries } = await loaded;
      const { test, problems } = RT.query.compile(query || "");
      return { problems, rows: summaries.filter(test), total: summaries.length };
    }

    function one(key) {
      if (!kept.has(key)) {
        const place = document.getElementById(`rollout-${key}`);
        if (!place) return Promise.reject(new Error(`this file has no trajectory ${key}: it was left out when the file was written`));
        kept.set(key, unpacked(place));
        if (kept.size > KEPT) kept.delete(kept.keys().next().value);
      }
      return kept.get(key);
    }

    async function trajectory(key) {
      const [{ file, outline }, { summaries }] = await Promise.all([one(key), loaded]);
      const family = summaries.filter((s) => s.episode && s.episode === outline.summary.episode);
      return { ...outline, family, key, file };
    }

    return {
      info: async () => {
        const { info, summaries } = await loaded;
        return { generation: 0, ...info, static: true, writable: false, indexing: null, total: summaries.length };
      },
      list: async ({ query = "", sort = "", reverse = false, offset = 0, limit = 100 }) => {
        const { problems, rows, total } = await matching(query);
        const sorted = RT.query.sorted(rows, sort, reverse);
        return { total, matched: rows.length, generation: 0, problems, rows: sorted.slice(offset, offset + limit) };
      },
      aggregate: async ({ query = "" }) => RT.aggregate((await matching(query)).rows),
      trajectory,
      steps: async (key, first, end) => {
        const [{ steps }, { names }] = await Promise.all([one(key), loaded]);
        return steps.slice(first, Math.min(end, first + PAGE_OF_STEPS)).map((step) => RT.packed.step(step, names));
      },
      raw: async (key, step) => ((await one(key)).raw || [])[step] || { request: null, response: null, line: null },
      annotate: async () => {
        throw new Error("a page in a file cannot write notes: open the recorded file with rollout-trace view");
      },
    };
  }

  /** The provider with what JSON leaves out filled in. */
  function completed(provider) {
    return {
      ...provider,
      list: async (options) => {
        const page = await provider.list(options);
        return { ...page, problems: page.problems || [], rows: page.rows.map(RT.defaults.summary) };
      },
      trajectory: async (key) => RT.defaults.outline(await provider.trajectory(key)),
      steps: async (key, first, end) => (await provider.steps(key, first, end)).map(RT.defaults.step),
      annotate: async (key, values) => RT.defaults.summary(await provider.annotate(key, values)),
    };
  }

  const inside = document.getElementById("rollout-data");
  return completed(inside ? embedded(inside) : server());
})();
