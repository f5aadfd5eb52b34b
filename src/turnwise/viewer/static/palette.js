/** Okabe and Ito's colours, which the colour-blind can tell apart, each with a dash of its own: never colour alone. */

const LIGHT = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b98600", "#2f8fc4", "#3d3d3d"];
const DARK = ["#56b4e9", "#ff8c42", "#2cc79b", "#e79ac6", "#f0c541", "#8fb8ff", "#d9d9d9"];
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3], [12, 4], [4, 2], [2, 5]];

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The look of the n-th curve. After the seventh, colours come again with another dash. */
export function look(index) {
  const colours = isDark() ? DARK : LIGHT;
  return {
    colour: colours[index % colours.length],
    dash: DASHES[(index + Math.floor(index / colours.length)) % DASHES.length],
  };
}

/** What a plot is drawn in, besides its curves. */
export function inks() {
  return isDark()
    ? { paper: "#15191e", text: "#c9d1d9", faint: "#8b949e", grid: "#2a3139", alarm: "#f0c541" }
    : { paper: "#ffffff", text: "#24292f", faint: "#636c76", grid: "#e6e9ed", alarm: "#b35900" };
}
