package api

import (
	"context"
	"encoding/json"
	"time"

	"weir/internal/tenants"
)

// Member is a person in the tenant, as the API shows it.
type Member struct {
	ID        string    `json:"id" format:"uuid"`
	Email     string    `json:"email" doc:"In lower case"`
	Role      string    `json:"role" enum:"owner,admin,editor,support,viewer"`
	State     string    `json:"state" enum:"invited,active" doc:"invited: has not joined yet, and has no permissions"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Version   int64     `json:"version"`
	Link      string    `json:"link,omitempty" doc:"Single-use invitation link, valid for 7 days. Only in the answer to the POST, and only if mail is not configured. Not in a replay"`
}

// MemberCreate is the body of POST /v1/members.
type MemberCreate struct {
	Email string `json:"email" doc:"At most 254 bytes; case-insensitive"`
	Role  string `json:"role" enum:"owner,admin,editor,support,viewer" doc:"owner and admin: everything; editor: rules, plans and subjects; support: resets and overrides of a subject; viewer: read only"`
}

// MemberPatch is the merge patch of PATCH /v1/members/{id}.
type MemberPatch struct {
	Role Optional[string] `json:"role,omitempty" enum:"owner,admin,editor,support,viewer" doc:"The role of the last owner cannot be changed"`
}

// MemberPath names a member.
type MemberPath struct {
	ID string `path:"id" doc:"Id of the member"`
}

func memberAnswer(m tenants.Member) Member {
	return Member{
		ID: m.ID.String(), Email: m.Email, Role: string(m.Role), State: string(m.State),
		CreatedAt: m.CreatedAt, UpdatedAt: m.UpdatedAt, Version: m.Version,
	}
}

func (a *admin) listMembers(ctx context.Context, in *struct{ PageParams }) (*page[Member], error) {
	return listPage(ctx, a, "members", in.PageParams, memberAnswer, func(p tenants.Page) ([]tenants.Member, string, error) {
		return a.store.Members(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) createMember(ctx context.Context, in *struct{ Body MemberCreate }) (*object[Member], error) {
	m, err := a.store.InviteMember(ctx, actorFrom(ctx), in.Body.Email, tenants.Role(in.Body.Role))
	if err != nil {
		return nil, err
	}
	afterCommit(ctx, func() { a.invited(m) })
	answer := memberAnswer(m.Member)
	answer.Link = a.invitationLink(m)
	return stored(answer, m.Version, true, "/v1/members/"+m.ID.String()), nil
}

// redactMember removes the link from an answer that is stored.
func redactMember(answer []byte) ([]byte, error) {
	var m Member
	if err := json.Unmarshal(answer, &m); err != nil {
		return nil, err
	}
	m.Link = ""
	return json.Marshal(m)
}

func (a *admin) getMember(ctx context.Context, in *MemberPath) (*object[Member], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	m, err := a.store.MemberByID(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return found(memberAnswer(m), m.Version), nil
}

func (a *admin) patchMember(ctx context.Context, in *struct {
	MemberPath
	Body MemberPatch
}) (*object[Member], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	var errs []ProblemField
	in.Body.Role.refuseNull(&errs, "/role")
	if err := invalidIfAny(errs); err != nil {
		return nil, err
	}
	m, err := a.store.EditMember(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match, func(m *tenants.Member) {
		m.Role = tenants.Role(in.Body.Role.patch(string(m.Role), ""))
	})
	if err != nil {
		return nil, err
	}
	return found(memberAnswer(m), m.Version), nil
}

func (a *admin) deleteMember(ctx context.Context, in *MemberPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.RemoveMember(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match)
}
