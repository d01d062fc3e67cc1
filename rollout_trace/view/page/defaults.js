// The fields that JSON leaves out because they have their default values (rollout_trace/view/model.py). Fields that are
// None are left out as well, and stay undefined here.
RT.defaults = (() => {
  const summary = (s) => ({
    name: "agent", status: "completed", steps: 0, calls: 0, tool_runs: 0, tool_errors: 0, rows: 0, tokens: 0,
    trained: 0, excerpt: "", agents: [], models: [], left_out: {}, findings: {}, drift: {}, ...s,
  });

  const line = (l) => ({ status: "ok", thread: 0, excerpt: "", tools: [], ...l });

  const message = (m) => ({ ...m, parts: m.parts.map((part) => ({ text: "", ...part })) });

  const step = (s) => ({
    repeated: 0, offered: [], tool_runs: [], children: [], findings: [], attempts: [], ...s,
    line: line(s.line), new: (s.new || []).map(message), answer: s.answer ? message(s.answer) : null,
  });

  const outline = (o) => ({
    threads: 1, exchanges: 0, exchange_bytes: 0, ratios: [], ...o,
    summary: summary(o.summary), steps: o.steps.map(line), rows: o.rows.map((row) => ({ has_logprobs: true, ...row })),
  });

  return { summary, outline, step };
})();
