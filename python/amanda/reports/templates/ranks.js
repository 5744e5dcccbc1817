// Panels of no rank are always shown.
const chosen = document.querySelector("#rank");
const follow = () => {
  for (const part of document.querySelectorAll("[data-rank]")) {
    part.hidden = chosen.value !== "" && part.dataset.rank !== chosen.value;
  }
  do_waiting();
};
chosen.addEventListener("change", follow);
follow(); // a browser restores a choice when a page is loaded again
