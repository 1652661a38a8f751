// Draws each figure when it first comes into view, with the page's own text and grid colours (light or dark).
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const settings = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function dressed(layout, element) {
    const quiet = style("--quiet");
    const axis = { gridcolor: style("--line"), linecolor: style("--line"), zerolinecolor: style("--line"), tickfont: { color: quiet } };
    const result = {
      ...layout,
      autosize: true,
      height: element.clientHeight,
      font: { family: style("--font"), size: 12, color: quiet },
      hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text") } },
    };
    result.xaxis = { ...axis, ...layout.xaxis };
    result.yaxis = { ...axis, ...layout.yaxis };
    return result;
  }

  function draw(element) {
    const figure = figures[element.dataset.figure];
    return window.Plotly.react(element, figure.data, dressed(figure.layout, element), settings).then(() => {
      element.dataset.drawn = "yes";
    });
  }

  const all = document.querySelectorAll("[data-figure]");
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((each) => each.isIntersecting)) {
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  all.forEach((element) => seen.observe(element));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    document.querySelectorAll("[data-drawn]").forEach(draw);
  });
  // A printed page has every figure, whether or not somebody scrolled to it.
  addEventListener("beforeprint", () => all.forEach((element) => element.dataset.drawn || draw(element)));
})();
