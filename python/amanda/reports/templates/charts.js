// Plotly's button for sharing would send the chart to its makers.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };
for (const place of document.querySelectorAll("div.chart")) {
  const section = place.closest("section");
  const { data, layout } = JSON.parse(place.textContent);
  const bars = data.filter(trace => trace.type === "bar");
  place.textContent = "";
  const emphasize = wanted => {
    let hits = 0;
    for (const { hovertext, marker } of bars) {
      const matches = hovertext.map(text => text.toLowerCase().includes(wanted));
      marker.opacity = matches.map(match => match ? 1 : 0.1);
      hits += matches.filter(Boolean).length;
    }
    if (place.classList.contains("js-plotly-plot")) Plotly.redraw(place);
    return hits;
  };
  if (bars.length) searchable.push({ section, search: emphasize });
  when_shown(section, () => {
    const style = getComputedStyle(document.body);
    const clear = "rgba(0, 0, 0, 0)";
    const colors = { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: style.color, family: style.fontFamily } };
    Plotly.newPlot(place, data, { ...layout, ...colors }, CONFIG);
  });
}
