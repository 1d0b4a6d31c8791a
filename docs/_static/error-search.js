// The search of the error reference: by code, by name, by a pasted message, traceback or log, or by words.
// findErrors().match is what `ropepool explain` finds (src/core/catalog.cpp); the tests compare the two.
"use strict";

(() => {
  const entries = window.ropepoolErrors;
  // A character a byte, since the library counts bytes.
  const bytes = (text) => new TextDecoder("latin1").decode(new TextEncoder().encode(text));
  const lower = (text) => text.replace(/[A-Z]+/g, (capitals) => capitals.toLowerCase());
  const trim = (text) => text.replace(/^[ \t\n\v\f\r]+|[ \t\n\v\f\r]+$/g, "");
  const isWord = (character) => /[A-Za-z0-9_]/.test(character);
  const byNumber = (number) => entries[number - 1];

  // With all three digits: logs have many an rp1 that is none of ours.
  function firstCode(text) {
    for (const [, , digits] of text.matchAll(/(^|[^a-z0-9_-])rp-?(\d{3})(?![a-z0-9_])/g)) {
      if (byNumber(Number(digits))) return byNumber(Number(digits));
    }
    return null;
  }

  // No message goes on for longer; in a log of one long line the search for its end would take a time that grows with its square.
  const maxRest = 1000;

  // Whether `text` holds `message` with anything in the place of its {placeholders}: as words of their own, on one line.
  function holdsMessage(text, message) {
    const [head, ...pieces] = lower(message).split(/\{[^}]*\}/);
    for (let at = text.indexOf(head); at >= 0; at = text.indexOf(head, at + 1)) {
      if (at > 0 && isWord(text[at - 1])) continue;
      const end = at + head.length;
      let line = text.slice(end, end + maxRest).split("\n", 1)[0];
      if (pieces.every((piece) => {
        const found = line.indexOf(piece);
        line = line.slice(found + piece.length);
        return found >= 0;
      })) return true;
    }
    return false;
  }

  const fixedLength = (message) => message.replace(/\{[^}]*\}/g, "").length;

  // The entries whose messages or codes are in `text`, the one that is meant first; last those that others speak of.
  function findByText(text) {
    const words = lower(bytes(text).replace(/\x1b\[[0-9;]*([^0-9;]|$)/g, ""));
    const trimmed = trim(words);
    const [, bare] = /^(?:rp[- ]?)?(\d{1,4})$/.exec(trimmed) || [];
    if (bare) return byNumber(Number(bare)) ? [byNumber(Number(bare))] : [];
    const named = entries.find((entry) => entry.name === trimmed);
    const code = firstCode(words);
    const holding = (kind) => entries.filter((entry) => entry[kind].some((message) => holdsMessage(words, message)));
    const held = holding("forms").sort((a, b) => fixedLength(b.message) - fixedLength(a.message));
    return [...new Set([code, named, ...held, ...holding("elsewhere")].filter(Boolean))];
  }

  const weights = {code: 8, name: 6, message: 5, argument: 4, meaning: 2, trigger: 2, situations: 2, solutions: 2, expected: 2, elsewhere: 2, guard: 1};
  const common = new Set("a an and are as at be by for from has have i in is it its my not of on or that the this to was with".split(" "));
  const wordsOf = (text) => lower(text).split(/[^a-z0-9_]+/).filter(Boolean);
  const index = entries.map((entry) => Object.entries(weights).map(([field, weight]) => [wordsOf([].concat(entry[field]).join(" ")), weight]));

  function score(fields, word) {
    let best = 0;
    for (const [words, weight] of fields) {
      for (const other of words) {
        const fit = other === word ? 1 : other.startsWith(word) ? 0.6 : word.length > 2 && other.includes(word) ? 0.3 : 0;
        best = Math.max(best, fit * weight);
      }
    }
    return best;
  }

  // Entries with all of the words, or where there are none those with the most telling ones.
  function findByWords(text) {
    const words = [...new Set(wordsOf(text))].filter((word) => !common.has(word));
    if (!words.length) return {all: true, found: []};
    const scores = words.map((word) => index.map((fields) => score(fields, word)));
    const telling = scores.map((row) => Math.log(1 + entries.length / (1 + row.filter(Boolean).length)));
    const ranked = entries
      .map((entry, at) => ({
        entry,
        all: scores.every((row) => row[at] > 0),
        sum: scores.reduce((sum, row, word) => sum + row[at] * telling[word], 0),
      }))
      .filter((found) => found.sum > 0)
      .sort((a, b) => b.sum - a.sum);
    const complete = ranked.filter((found) => found.all);
    return {all: complete.length > 0, found: (complete.length ? complete : ranked.slice(0, 5)).map((found) => found.entry)};
  }

  const isPaste = (text) => trim(text).includes("\n") || wordsOf(text).length > 16;

  // match: as `ropepool explain`; others: what else the text speaks of, or what has its words.
  window.findErrors = (text) => {
    const [match = null, ...also] = findByText(text);
    if (match) return {match, others: also, all: true};
    if (isPaste(text) || /^\s*\d+\s*$/.test(text)) return {match, others: [], all: true};
    const {all, found} = findByWords(text);
    return {match, others: found, all};
  };

  // ---- The page

  function status(text, {match, others, all}) {
    const results = others.length === 1 ? "1 result" : `${others.length} results`;
    if (!trim(text)) return "";
    if (match) return `${match.code} ${match.name}${others.length ? `, and ${results} more in this text` : ""}`;
    if (others.length) return all ? results : `Nothing has all of these words; ${results} with some of them`;
    if (isPaste(text)) return "No message of ropepool is in this text. It is in the line that begins with ropepool.ContractError, or try words.";
    return "Nothing found. Try fewer words, or look through the list below.";
  }

  function element(tag, name, text) {
    const made = document.createElement(tag);
    made.className = name;
    made.textContent = text;
    return made;
  }

  function link(entry) {
    const made = document.createElement("a");
    made.href = entry.url;
    made.append(element("span", "code", entry.code), " ", element("span", "message", entry.message), " ", element("span", "meaning", entry.meaning));
    return made;
  }

  function startPage(form) {
    const query = document.getElementById("error-query");
    const list = document.getElementById("error-results");
    const links = () => [...list.querySelectorAll("a")];

    function show() {
      const found = window.findErrors(query.value);
      list.replaceChildren(...[found.match, ...found.others].filter(Boolean).map((entry) => {
        const item = document.createElement("li");
        item.append(link(entry));
        return item;
      }));
      document.getElementById("error-status").textContent = status(query.value, found);
    }

    query.addEventListener("input", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("keydown", (event) => {
      if (event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
      const at = links().indexOf(document.activeElement);
      const inQuery = document.activeElement === query;
      const move = (to) => {
        event.preventDefault();
        (links()[to] || query).focus();
      };
      if (inQuery && event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        links()[0]?.click();
      } else if (inQuery && event.key === "ArrowDown" && links().length && !query.value.slice(query.selectionEnd).includes("\n")) {
        move(0);
      } else if (at >= 0 && event.key === "ArrowDown") {
        move(Math.min(at + 1, links().length - 1));
      } else if (at >= 0 && event.key === "ArrowUp") {
        move(at - 1);
      } else if (at >= 0 && event.key === "Escape") {
        move(-1);
      }
    });
    // "/" goes to this search here, before Sphinx sends it to the one for the guide.
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.altKey || event.metaKey || /^(input|textarea|select)$/i.test(document.activeElement.tagName)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
      query.focus();
    }, true);

    form.hidden = false;
    query.value ||= new URLSearchParams(location.search).get("q") || "";
    show();
  }

  // The site's word search knows nothing of shapes in a message: say above its results which error is meant.
  function searchPage(results) {
    const match = findByText(new URLSearchParams(location.search).get("q") || "")[0];
    if (!match) return;
    const list = element("ul", "error-list", "");
    list.append(document.createElement("li"));
    list.firstChild.append(link(match));
    results.before(list);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("error-search");
    const results = document.getElementById("search-results");
    if (form) startPage(form);
    else if (results) searchPage(results);
  });
})();
