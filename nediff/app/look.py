"""How the page looks: fonts of the system, and styles of our own in Gradio's colours."""

from typing import Any

import gradio as gr

from nediff.app.page import static

CSS = static("viewer.css") + static("page.css")
HEAD = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def theme() -> Any:
    """Gradio's own, without fonts from the web, and with more contrast (WCAG AA)."""
    return gr.themes.Default(
        primary_hue="blue",
        neutral_hue="slate",
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    ).set(
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        block_label_text_color_dark="*neutral_200",
        block_title_text_color="*neutral_700",
        block_title_text_color_dark="*neutral_200",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
    )
