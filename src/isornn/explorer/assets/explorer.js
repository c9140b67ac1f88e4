// What happens in the browser: sliders agree with their numbers, moves are gathered, old answers are marked.
(function () {
  // Ten steps to a decade, rounded as preferred numbers (Renard's R10).
  const STEPS = [1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8];
  const REST = 70; // milliseconds without a further move

  function toNumber(position, scale, low) {
    if (scale === "linear") return Number(position.toFixed(6));
    if (position < 10 * low) return 0;
    const decade = Math.floor(position / 10);
    return Number(`${STEPS[position - 10 * decade]}e${decade}`);
  }

  function toPosition(number, scale, low) {
    if (scale === "linear") return number;
    return number > 0 ? Math.max(10 * low, Math.round(10 * Math.log10(number))) : 10 * low - 1;
  }

  function waits(milliseconds) {
    return new Promise((done) => setTimeout(done, milliseconds));
  }

  let gathered = 0;

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.explorer = {
    agree: function (positions, number, ids) {
      const { scale, low } = ids[0];
      const moved = window.dash_clientside.callback_context.triggered_id;
      if (moved && moved.part === "slider") {
        return [[window.dash_clientside.no_update], toNumber(Number(positions[0]), scale, low)];
      }
      if (typeof number !== "number") return [[window.dash_clientside.no_update], window.dash_clientside.no_update];
      return [[toPosition(number, scale, low)], window.dash_clientside.no_update];
    },

    gather: async function (numbers, words, numberIds, wordIds) {
      const mine = ++gathered;
      await waits(REST);
      if (mine !== gathered) return window.dash_clientside.no_update;
      const moves = {};
      wordIds.forEach((id, k) => { moves[id.path] = words[k]; });
      numberIds.forEach((id, k) => { moves[id.path] = numbers[k] === undefined ? null : numbers[k]; });
      return moves;
    },

    mark: function (spec, length, done, was) {
      const all = `${spec} ${length ?? ""}`;
      const plain = was.replace(" stale", "").replace(" refused", "");
      if (done === spec || done === all) return plain;
      return plain + (done === `refused ${spec}` || done === `refused ${all}` ? " stale refused" : " stale");
    },

    copy: async function (_clicks, line) {
      const clicked = window.dash_clientside.callback_context.triggered.some((one) => one.prop_id === "copy.n_clicks");
      if (!clicked) return "Copy";
      await navigator.clipboard.writeText(line);
      return "Copied";
    },
  };
})();
