// plotly.js and the figures by gzip, in base 85: Python's alphabet, but ' for <, which could end the script element.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;'=>?@^_`{|}~";
const unpacked = async (id) => {
  const text = document.getElementById(id).textContent.trim();
  const digits = new Uint8Array(128);
  [...DIGITS].forEach((digit, value) => (digits[digit.charCodeAt(0)] = value));
  const whole = text.padEnd(Math.ceil(text.length / 5) * 5, "~");
  const bytes = new DataView(new ArrayBuffer((whole.length / 5) * 4));
  for (let at = 0, to = 0; at < whole.length; to += 4) {
    let value = 0;
    for (const end = at + 5; at < end; at++) value = value * 85 + digits[whole.charCodeAt(at)];
    bytes.setUint32(to, value);
  }
  const zipped = new Blob([bytes.buffer.slice(0, Math.floor((text.length * 4) / 5))]);
  return new Response(zipped.stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const plotly = unpacked("plotly").then((source) => {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
});
const drawings = unpacked("figures").then(JSON.parse);
// Ten to that power as text, however small: as many digits as the figure's numbers allow.
const powerOfTen = (power) => {
  if (power === null) return "";
  if (power > -3 && power < 4) return String(Number((10 ** power).toPrecision(3)));
  const whole = Math.floor(power);
  return `${(10 ** (power - whole)).toFixed(Math.abs(power) < 100 ? 1 : 0)}e${whole}`;
};
// A figure is drawn when it comes near to the view: a deep model has hundreds.
const places = [...document.querySelectorAll("[data-figure]")];
const draw = async (place) => {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  await plotly;
  const { figures, arrays } = await drawings;
  const { data, layout } = figures[Number(place.dataset.figure)];
  for (const curve of data) {
    if ("x" in curve) curve.x = arrays[curve.x];
    if ("y" in curve) curve.y = arrays[curve.y];
    if (curve.meta === "log10") curve.customdata = curve.y.map(powerOfTen);
  }
  Plotly.newPlot(place, data, layout, { displayModeBar: false, responsive: true });
};
const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
    near.unobserve(entry.target);
    draw(entry.target);
  }),
  { rootMargin: "800px" },
);
places.forEach((place) => near.observe(place));
addEventListener("beforeprint", () => places.forEach(draw));
