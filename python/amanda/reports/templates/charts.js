// Plotly's button for sharing would send the chart to its makers.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };
const FOUND = "#e8590c", OTHER = "rgba(128, 128, 128, .25)"; // boxes, while something is searched
for (const place of document.querySelectorAll("div.chart")) {
  const section = place.closest("section");
  const { data, layout } = JSON.parse(place.textContent);
  const bars = data.filter(trace => trace.type === "bar"), boxes = data.filter(trace => trace.type === "icicle");
  place.textContent = "";
  const about = `${section.dataset.heading}\n${layout.yaxis?.title?.text ?? ""}`.toLowerCase(); // a curve has no other texts
  const emphasize = wanted => {
    let hits = bars.length || boxes.length || !about.includes(wanted) ? 0 : 1;
    const matching = texts => {
      const matches = texts.map(text => text.toLowerCase().includes(wanted));
      hits += matches.filter(Boolean).length;
      return matches;
    };
    for (const { hovertext, marker } of bars) marker.opacity = matching(hovertext).map(match => match ? 1 : 0.1);
    for (const trace of boxes) {
      const colors = matching(trace.labels).map(match => match ? FOUND : OTHER);
      trace.marker = wanted ? { colors } : {};
    }
    if (place.classList.contains("js-plotly-plot")) Plotly.redraw(place);
    return hits;
  };
  searchable.push({ section, search: emphasize });
  when_shown(section, () => {
    const style = getComputedStyle(document.body);
    const clear = "rgba(0, 0, 0, 0)";
    const colors = { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: style.color, family: style.fontFamily } };
    Plotly.newPlot(place, data, { ...layout, ...colors }, CONFIG);
  });
}
