// Unpacking takes some tenths of a second, in which the page can be read.
const shown = new Promise((resolve) => setTimeout(resolve));
const figures = shown.then(() => JSON.parse(unpacked("figures")));
const plotly = figures.then(() => {
  const script = document.createElement("script");
  script.textContent = unpacked("plotly");
  document.head.append(script);
});
// A figure is drawn when it comes near to the view: a deep model has hundreds.
const places = [...document.querySelectorAll("[data-figure]")];
const draw = async (place) => {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  await plotly;
  const { data, layout } = (await figures)[Number(place.dataset.figure)];
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
