package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/negotiation"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Lists that can also be exported: all rows, as a table or as lines of JSON.

const jsonLinesType = "application/jsonl"

// askedForm is what a request says about the form of the answer, in addition to the parameters.
type askedForm struct {
	limited bool   // it has the parameter limit
	accept  string // its header Accept
}

func askedFormOf(ctx huma.Context) askedForm {
	return askedForm{limited: ctx.Query("limit") != "", accept: ctx.Header("Accept")}
}

// format returns json, csv or jsonl. parameter is the value of the parameter format, "" for none.
func (f *askedForm) format(parameter string) string {
	if parameter != "" {
		return parameter
	}
	switch negotiation.SelectQValueFast(f.accept, []string{jsonType, csvType, jsonLinesType}) {
	case csvType:
		return "csv"
	case jsonLinesType:
		return "jsonl"
	}
	return "json"
}

// pagesOnly refuses parameters that an export of all rows would ignore.
func (f *askedForm) pagesOnly(cursor string) error {
	var wrong []ProblemField
	for _, given := range []struct {
		name string
		is   bool
	}{{"cursor", cursor != ""}, {"limit", f.limited}} {
		if given.is {
			wrong = append(wrong, wrongField("query:"+given.name, limit.Wrong("Omit it, or use format=json.", "is only for format=json: other formats have all rows")))
		}
	}
	return invalidIfAny(wrong)
}

// periodOf reads the parameters from and to, which may be empty.
func periodOf(fromText, toText string) (from, to *time.Time, err error) {
	for _, bound := range []struct {
		name, text string
		to         **time.Time
	}{{"from", fromText, &from}, {"to", toText, &to}} {
		if bound.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, bound.text)
		if err != nil {
			return nil, nil, invalid(wrongField("query:"+bound.name, notRFC3339))
		}
		*bound.to = &t
	}
	return from, to, nil
}

// rowWriter writes rows of an export.
type rowWriter[T any] = func(rows []T) error

// exportableList is a list whose rows are T in the store and A in an answer.
type exportableList[T, A any] struct {
	what         string // it has, for the record of an export
	file         string // the name of an export without its extension
	name         string // with the filter, for the list's cursors
	fetch        func(tenants.Page) (rows []T, next string, err error)
	answer       func(T) A
	table, lines func(io.Writer) rowWriter[T]
}

// exportableResponse describes the answer of listOrExport.
func exportableResponse[A any](a *admin) *huma.Response {
	ok := jsonResponse[List[A]](a.api, "OK")
	for _, other := range []string{csvType, jsonLinesType} {
		ok.Content[other] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	return ok
}

// listOrExport answers with one page of a list as JSON, or with all rows in another format.
// parameter is the value of the parameter format, "" for none.
func listOrExport[T, A any](ctx context.Context, a *admin, asked *askedForm, parameter string, page PageParams, l exportableList[T, A]) (*huma.StreamResponse, error) {
	if format := asked.format(parameter); format != "json" {
		if err := asked.pagesOnly(page.Cursor); err != nil {
			return nil, err
		}
		return exportAll(ctx, a, format, l)
	}
	list, err := listPage(ctx, a, l.name, page, l.answer, l.fetch)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(list.Body)
	if err != nil {
		return nil, err
	}
	return varying(jsonAnswer(body)), nil
}

// exportAll streams all rows. It reads the first page before it sends anything, so that it can
// report errors of the request.
func exportAll[T, A any](ctx context.Context, a *admin, format string, l exportableList[T, A]) (*huma.StreamResponse, error) {
	place, err := until(ctx, a.answers.exports)
	if err != nil {
		return nil, err
	}
	rows, next, err := l.fetch(tenants.ExportPage())
	if err != nil {
		return nil, err
	}
	if err := a.store.RecordExport(ctx, actorFrom(ctx), l.what, format); err != nil {
		return nil, err
	}
	return varying(&huma.StreamResponse{Body: func(hctx huma.Context) {
		contentType, writer := jsonLinesType, l.lines
		if format == "csv" {
			contentType, writer = csvType+"; charset=utf-8", l.table
		}
		hctx.SetHeader("Content-Type", contentType)
		hctx.SetHeader("Content-Disposition", `attachment; filename="`+l.file+`.`+format+`"`)
		_, w := humachi.Unwrap(hctx)
		pace := place.Pace(w)
		err := tenants.SendPages(pace, deadlinesOf(ctx).write, rows, next, writer(pace), l.fetch)
		if err == nil {
			return
		}
		a.logExport(hctx.Context(), err)
		panic(http.ErrAbortHandler) // the client must not take a part for the whole
	}}), nil
}

// logExport logs why an export has ended early, unless its client has ended it.
func (a *admin) logExport(ctx context.Context, err error) {
	switch {
	case errors.Is(err, tenants.ErrExportEnds):
		a.logger.Info("an export was canceled because another tenant waits for its place", "request_id", requestID(ctx))
	case !errors.Is(err, tenants.ErrExportUnread) && !errors.Is(err, errClientGone):
		_ = a.problem(ctx, err) // logs it
	}
}

// varying adds to an answer that it depends on the header Accept.
func varying(answer *huma.StreamResponse) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Vary", "Accept")
		answer.Body(ctx)
	}}
}
