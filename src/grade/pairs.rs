//! `report grade`: grades a file of pairs. One JSON object a line with `gold` and `pred`; `verdict` and `rule` are
//! added and everything else is kept. Reads in blocks, grades a block in parallel, and replaces the output at the end.
