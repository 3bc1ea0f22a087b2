// Buttons that copy a table; without scripts the page is the same but for them.
const FORMATS = {
  Markdown: (rows) => {
    const line = (cells) => `| ${cells.map((c) => c.replaceAll("|", "\\|")).join(" | ")} |`;
    return [line(rows[0]), line(rows[0].map(() => "---")), ...rows.slice(1).map(line)].join("\n");
  },
  LaTeX: (rows) => {
    const escape = (cell) => cell.replaceAll("\\", "\u0000").replace(/[&%$#_{}]/g, "\\$&")
      .replaceAll("\u0000", "\\textbackslash{}").replaceAll("~", "\\textasciitilde{}")
      .replaceAll("^", "\\textasciicircum{}").replaceAll("±", "$\\pm$").replaceAll("−", "$-$")
      .replaceAll("–", "--");
    const lines = rows.map((cells) => `${cells.map(escape).join(" & ")} \\\\`);
    return [`\\begin{tabular}{l${"r".repeat(rows[0].length - 1)}}`, lines[0], "\\hline",
      ...lines.slice(1), "\\end{tabular}"].join("\n");
  },
  CSV: (rows) => rows.map((cells) => cells.map((cell) =>
    `"${cell.replaceAll("−", "-").replaceAll('"', '""')}"`).join(",")).join("\n"),
};

function rowsOf(table) {
  const cells = (row) => [...row.cells].flatMap((cell) =>
    [cell.innerText.replace(/\s+/g, " ").trim(), ...Array(cell.colSpan - 1).fill("")]);
  return [...table.rows].map(cells);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // not allowed for a page from a file in every browser
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const table of document.querySelectorAll("table:has(thead)")) {
  const bar = document.createElement("div");
  bar.className = "copy";
  bar.append("copy as ");
  for (const [name, format] of Object.entries(FORMATS)) {
    const button = document.createElement("button");
    button.textContent = name;
    button.addEventListener("click", async () => {
      await copy(format(rowsOf(table)));
      button.textContent = "copied";
      setTimeout(() => { button.textContent = name; }, 1200);
    });
    bar.append(button);
  }
  table.parentElement.after(bar);
}
