"use strict";
// Plotly's button for sharing would send the chart to its makers.
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "" };
for (const place of document.querySelectorAll("div.chart")) {
  const { data, layout } = JSON.parse(place.textContent);
  place.textContent = "";
  const clear = "rgba(0, 0, 0, 0)";
  const colors = { paper_bgcolor: clear, plot_bgcolor: clear, font: { color: getComputedStyle(document.body).color } };
  Plotly.newPlot(place, data, { ...layout, ...colors }, CONFIG);
}
