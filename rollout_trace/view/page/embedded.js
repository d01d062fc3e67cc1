// The tokens of a page in one file as the server sends them: undoes the Packer of rollout_trace/view/static.py.
RT.embedded = (() => {
  const thousandths = (value) => (value === null ? null : value / 1000);

  function tokens(packed, names) {
    const { n, no_texts, no_ids, logprobs, entropy, alternatives, log_ratios } = packed;
    const column = (name) => packed.names.map((number) => names[name][number]);
    const found = { n, texts: no_texts ? null : column("texts"), ids: no_ids ? null : column("ids"), logprobs, log_ratios };
    if (entropy) found.entropy = entropy.map(thousandths);
    if (alternatives) found.alternatives = unpacked(alternatives, packed, names);
    return found;
  }

  function unpacked(alternatives, packed, names) {
    let [at, next] = [0, 0];
    return alternatives.counts.map((count, token) => Array.from({ length: count }, () => {
      const number = alternatives.names[at++];
      const name = number < 0 ? packed.names[token] : number;
      const logprob = number < 0 ? (packed.logprobs || [])[token] : thousandths(alternatives.logprobs[next++]);
      return [names.texts[name], names.ids[name], logprob];
    }));
  }

  /** A step, with the names of the tokens of the whole page: {texts, ids}. */
  const step = (packed, names) => (packed.tokens ? { ...packed, tokens: tokens(packed.tokens, names) } : packed);

  return { step };
})();
