// A figure is drawn when it comes near to the view: a deep model has hundreds.
const figures = JSON.parse(document.getElementById("figures").textContent);
const places = [...document.querySelectorAll("[data-figure]")];
const draw = (place) => {
  if (place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  const { data, layout } = figures[Number(place.dataset.figure)];
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
