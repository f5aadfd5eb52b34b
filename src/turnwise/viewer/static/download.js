/** Files that the page makes and hands over. */

export function download(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\p{L}\p{N}._-]+/gu, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export function downloadText(name, text, type) {
  download(name, new Blob([text], { type }));
}

/** Rows as CSV: numbers as they are, text in quotes where it needs them. */
export function csv(rows) {
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
