// Before the first paint, so that the page does not flash in the other colours.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
