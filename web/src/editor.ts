/** The editor: CodeMirror in a shadow root, where its styles are adopted sheets and a strict policy allows them. */

import { autocompletion, closeBrackets, closeBracketsKeymap, closeCompletion, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab, temporarilySetTabFocusMode } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { HighlightStyle, bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState, Prec } from "@codemirror/state";
import {
  EditorView,
  drawSelection,
  highlightActiveLine,
  highlightActiveLineGutter,
  keymap,
  lineNumbers,
  placeholder,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { LitElement, css, html } from "lit";
import { base } from "./styles.js";

const colours = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--code-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null, tags.self], color: "var(--code-number)" },
  { tag: tags.comment, color: "var(--code-comment)", fontStyle: "italic" },
  { tag: [tags.function(tags.variableName), tags.function(tags.definition(tags.variableName)), tags.function(tags.propertyName)], color: "var(--code-name)" },
  { tag: [tags.className, tags.definition(tags.className), tags.typeName, tags.meta], color: "var(--code-type)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", backgroundColor: "var(--surface)", color: "var(--text)", fontSize: "0.93rem" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6", overscrollBehavior: "contain" },
  ".cm-content": { padding: "0.75rem 0", caretColor: "var(--text)" },
  ".cm-line": { padding: "0 1rem 0 0.5rem" },
  ".cm-gutters": { backgroundColor: "var(--surface)", color: "var(--muted)", border: "none", paddingLeft: "0.4rem" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--code-line)" },
  ".cm-cursor, .cm-dropCursor": { borderLeftColor: "var(--text)", borderLeftWidth: "2px" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--code-selection)" },
  ".cm-selectionMatch": { backgroundColor: "var(--accent-soft)" },
  "&.cm-focused .cm-matchingBracket, .cm-matchingBracket": { backgroundColor: "var(--accent-soft)", outline: "1px solid var(--accent)" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: "8px", overflow: "hidden" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--accent-text)" },
  ".cm-panels": { backgroundColor: "var(--sunken)", color: "var(--text)" },
  ".cm-panels.cm-panels-bottom": { borderTop: "1px solid var(--line)" },
  ".cm-textfield, .cm-button": { backgroundImage: "none", backgroundColor: "var(--surface)", color: "var(--text)", border: "1px solid var(--control)", borderRadius: "6px" },
});

/** Typing over a selection. The browser's own way writes style attributes, which the page's policy forbids. */
const typeOver = EditorView.domEventHandlers({
  beforeinput(event, view) {
    const { data, inputType } = event;
    const { from, to, empty } = view.state.selection.main;
    if (inputType !== "insertText" || !data || empty || event.isComposing) return false;
    const typed = () => view.state.update(view.state.replaceSelection(data), { userEvent: "input.type", scrollIntoView: true });
    if (!view.state.facet(EditorView.inputHandler).some((handler) => handler(view, from, to, data, typed))) view.dispatch(typed());
    return true;
  },
});

export class FumeEditor extends LitElement {
  static override styles = [
    base,
    css`
      :host { height: 100%; }
      #place { height: 100%; border-radius: 0 0 11px 11px; overflow: hidden; position: relative; }
      #place:focus-within::after { content: ""; position: absolute; inset: 0; border: 2px solid var(--accent); border-radius: 0 0 11px 11px; pointer-events: none; z-index: 300; }
    `,
  ];
  #view: EditorView | null = null;
  #first = "";
  /** What a key asks for; false where there is nothing to do, and the key means something else. */
  onRun: () => void = () => {};
  onStop: () => boolean = () => false;
  onLeave: () => void = () => {};

  get value(): string {
    return this.#view ? this.#view.state.doc.toString() : this.#first;
  }

  set value(text: string) {
    if (!this.#view) this.#first = text;
    else if (text !== this.value) this.#view.dispatch({ changes: { from: 0, to: this.#view.state.doc.length, insert: text } });
  }

  insert(text: string): void {
    const view = this.#view;
    if (!view) return;
    view.dispatch(view.state.replaceSelection(text), { scrollIntoView: true });
    view.focus();
  }

  override focus(): void {
    this.#view?.focus();
  }

  override render() {
    return html`<div id="place"></div>`;
  }

  override firstUpdated(): void {
    const keys = Prec.highest(
      keymap.of([
        { key: "Mod-Enter", run: (view) => (closeCompletion(view), this.onRun(), true) },
        { key: "Ctrl-.", run: () => this.onStop() },
      ]),
    );
    // After all others: Escape closes a list of completions or a search before it stops a run or leaves.
    const last = Prec.lowest(
      keymap.of([
        { key: "Escape", run: (view) => this.onStop() || (temporarilySetTabFocusMode(view), this.onLeave(), true) },
      ]),
    );
    this.#view = new EditorView({
      root: this.renderRoot as ShadowRoot,
      parent: this.renderRoot.querySelector("#place")!,
      state: EditorState.create({
        doc: this.#first,
        extensions: [
          keys,
          typeOver,
          lineNumbers(),
          highlightActiveLineGutter(),
          history(),
          drawSelection(),
          indentOnInput(),
          indentUnit.of("    "),
          bracketMatching(),
          closeBrackets(),
          autocompletion({ icons: false }),
          highlightActiveLine(),
          highlightSelectionMatches(),
          python(),
          syntaxHighlighting(colours),
          look,
          EditorView.lineWrapping,
          placeholder("Python. Ctrl+Enter runs it."),
          EditorView.contentAttributes.of({ "aria-label": "Python code. Escape, then Tab, leaves the editor.", autocapitalize: "off", spellcheck: "false" }),
          keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...completionKeymap, indentWithTab]),
          last,
          EditorView.updateListener.of((update) => {
            if (update.docChanged) this.dispatchEvent(new CustomEvent("edited"));
          }),
        ],
      }),
    });
  }
}
customElements.define("fume-editor", FumeEditor);
