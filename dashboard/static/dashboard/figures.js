// Draws one figure with the page's own text and grid colours, so that it fits light and dark.

const SETTINGS = { displayModeBar: false, responsive: true, showTips: false };

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function dressed(layout) {
  const text = style("--quiet");
  const axis = { gridcolor: style("--line"), linecolor: style("--line"), zerolinecolor: style("--line"), tickfont: { color: text } };
  const result = {
    ...layout,
    font: { family: style("--font"), size: 12, color: text },
    hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text"), family: style("--font") } },
    autosize: true,
  };
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    const level = layout[key].type === "date" ? { tickangle: 0, nticks: 6 } : {};
    result[key] = { ...axis, ...level, ...layout[key], tickfont: { ...axis.tickfont, ...(layout[key].tickfont || {}) } };
  }
  result.xaxis ??= axis;
  result.yaxis ??= axis;
  return result;
}

// Names in a map's cells are cut to the width that a cell has here; the whole name is shown on hover.
function fitted(data, width) {
  return data.map((trace) => {
    if (trace.type !== "heatmap" || !trace.text) return trace;
    const columns = Math.max(...trace.text.map((row) => row.length));
    const characters = Math.floor((width - 90) / columns / 6.6);
    const cut = (text) => (text.length <= characters ? text : characters < 4 ? "" : `${text.slice(0, characters - 1)}…`);
    return { ...trace, text: trace.text.map((row) => row.map(cut)) };
  });
}

export function draw(element, figure) {
  element.classList.remove("empty");
  if (!element.classList.contains("js-plotly-plot")) element.replaceChildren();
  const height = figure.layout.height || parseInt(element.style.minHeight, 10) || 260;
  const layout = dressed({ ...figure.layout, height });
  const first = !element.classList.contains("js-plotly-plot");
  return window.Plotly.react(element, fitted(figure.data, element.clientWidth), layout, SETTINGS).then(() => {
    if (first) openJobsOnClick(element);
    element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
  });
}

export function say(element, text) {
  if (element.classList.contains("js-plotly-plot")) window.Plotly.purge(element);
  element.classList.add("empty");
  element.textContent = text;
  element.dataset.drawn = String(Number(element.dataset.drawn || 0) + 1);
}

// The GPU map's cells carry a job's id.
function openJobsOnClick(element) {
  element.on("plotly_click", (event) => {
    const custom = event.points?.[0]?.customdata;
    const jobId = Array.isArray(custom) ? custom[0] : null;
    if (typeof jobId === "string" && /^[a-z0-9]{6,16}$/.test(jobId)) window.location.assign(`/jobs/${jobId}/`);
  });
}
