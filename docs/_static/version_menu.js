// A menu of the versions whose sites are in folders beside this one. scripts/docs_site.py writes their list. Without it,
// there is no menu.
(() => {
  const site = new URL(document.documentElement.dataset.content_root || "./", location.href);
  const page = location.href.slice(site.href.length).replace(/[?#].*/, "");
  const here = decodeURIComponent(site.pathname.split("/").at(-2));

  function open(version) {
    const other = new URL(`../${encodeURIComponent(version)}/`, site);
    const same = new URL(page, other);
    fetch(same, { method: "HEAD" }) // the page can be missing there; files cannot be asked for
      .then((answer) => answer.ok, () => false)
      .then((found) => location.assign(found ? same : new URL("index.html", other)));
  }

  function fill() {
    const menu = document.querySelector(".version-menu");
    const select = menu.querySelector("select");
    select.append(...window.amandaVersions.map((name) => new Option(name, name, name === here, name === here)));
    select.addEventListener("change", () => open(select.value));
    menu.hidden = false;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const list = document.createElement("script");
    list.src = new URL("../versions.js", site);
    list.addEventListener("load", fill);
    document.head.append(list);
  });
})();
