// One search for all that the page has: tables and source code show what matches, timelines emphasize it, headings count it.
const everywhere = document.querySelector("#everywhere");
let asked = 0;
const search_all = async () => {
  const mine = ++asked;
  const wanted = everywhere.value.trim().toLowerCase();
  const by_panel = new Map();
  const tell = (place, hits) => {
    place.textContent = wanted ? count(hits) : "";
    place.classList.toggle("none", hits === 0);
  };
  for (const { section, search } of searchable) {
    const hits = await search(wanted);
    if (mine !== asked) return; // another search has begun
    const panel = section.closest(".panel");
    by_panel.set(panel, (by_panel.get(panel) ?? 0) + hits);
    const tab = panel.querySelector(`[aria-controls="${section.id}"] .hits`);
    if (tab) tell(tab, hits);
  }
  for (const [panel, hits] of by_panel) tell(panel.querySelector("summary .hits"), hits);
  everywhere.removeAttribute("aria-busy");
};
let soon;
everywhere.addEventListener("input", () => {
  everywhere.setAttribute("aria-busy", "true");
  clearTimeout(soon);
  soon = setTimeout(search_all, 100);
});

for (const panel of document.querySelectorAll(".panel:has([role=tab])")) choose(panel.querySelector("section"));
follow_address();
do_waiting();
if (everywhere.value) search_all(); // a browser restores it when a page is loaded again
