--[[
COMMIT: the one compare-and-set of a transition (design, section 3).

KEYS[1] meta  KEYS[2] scopes  KEYS[3] children  KEYS[4] joins  KEYS[5] leases  KEYS[6] events
KEYS[7] record of this idempotency key: hash {digest, reply, receipt}, with a TTL
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] kind: supersede (epoch + 1), cancel (epoch + 1, terminal), pause, resume (version kept)
ARGV[4] scope  ARGV[5] expected version "term.epoch"
ARGV[6] digest of the request: the same key with another digest is refused
ARGV[7] by: who commits  ARGV[8] lifetime of the idempotency record in milliseconds
Supersede and cancel take the subtree along: every live descendant moves in this commit.
Returns {'0' made now | '1' replayed, receipt or '', JSON {kind, scope, from, to, generation, sequence,
event_id, children: [[scope, version], ...], gates: [[node, boot_id, lease left in ms], ...]}}; an empty
list is {}. The gates are those of every scope that moved; node '*' stands for leases of an older term.
Errors: NEEDREGISTER tenant | scope, TERMMISMATCH, IDEMPOTENCY, SCOPECLOSED <version>,
VERSIONCONFLICT <current>, EPOCHS (the epoch has no successor)
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local kind, name = ARGV[3], ARGV[4]
local made = redis.call('HMGET', KEYS[7], 'digest', 'reply', 'receipt')
if made[1] then
  if made[1] ~= ARGV[6] then
    return refuse('IDEMPOTENCY')
  end
  -- A write, so that WAITAOF after it also covers the first caller's commit.
  redis.call('PEXPIRE', KEYS[7], ARGV[8])
  return { '1', made[3] or '', made[2] }
end
local held = redis.call('HGET', KEYS[2], name)
if not held then
  return refuse('NEEDREGISTER scope')
end
local scope = unpack_scope(held)
local from = version(scope)
if scope.cancelled then
  return refuse('SCOPECLOSED ' .. from)
end
if from ~= ARGV[5] then
  return refuse('VERSIONCONFLICT ' .. from)
end

local function next_epoch(moving)
  return int(tonumber(moving.epoch) + 1)
end

local moves = kind == 'supersede' or kind == 'cancel'
if moves and tonumber(scope.epoch) >= 1099511627775 then
  return refuse('EPOCHS')
end

local moved, children, met = { name }, {}, { [name] = true }
if moves then
  scope.epoch = next_epoch(scope)
  scope.cancelled = kind == 'cancel'
  local at = 1
  while moved[at] do
    for _, member in ipairs(below(KEYS[3], moved[at])) do
      local child_name = string.match(member, '(%Z+)$')
      local child = unpack_scope(redis.call('HGET', KEYS[2], child_name))
      if not child.cancelled and not met[child_name] then
        met[child_name] = true -- a rebuild takes parents as they are given: in a circle, too
        child.epoch = next_epoch(child)
        child.cancelled = kind == 'cancel'
        redis.call('HSET', KEYS[2], child_name, pack_scope(child))
        moved[#moved + 1] = child_name
        children[#children + 1] = { child_name, version(child) }
      end
    end
    at = at + 1
  end
else
  scope.paused = kind == 'pause'
end
redis.call('HSET', KEYS[2], name, pack_scope(scope))

-- The gates that could still publish what just moved, each boot once, with what is left of its lease.
local now, gates, seen = now_ms(), {}, {}
local settling = tonumber(redis.call('HGET', KEYS[1], 'settle_ms') or '0') - now
if settling > 0 then
  gates[1] = { '*', '', int(settling) }
end

local function lease_left(node, boot)
  local left = nil
  for _, lease in ipairs(read_leases(redis.call('HGET', KEYS[5], node))) do
    if lease.boot == boot or boot == '?' then
      left = math.max(left or -math.huge, lease.end_ms - now)
    end
  end
  return left
end

for _, moved_name in ipairs(moved) do
  for _, member in ipairs(below(KEYS[4], moved_name)) do
    local node, boot = string.match(member, '^%Z+%z(%Z+)%z(%Z+)$')
    local gate = node .. '\0' .. boot
    if not seen[gate] then
      seen[gate] = lease_left(node, boot) or -1
      if seen[gate] > -FORGET_MS then
        gates[#gates + 1] = { node, boot, int(seen[gate]) }
      end
    end
    if seen[gate] <= -FORGET_MS then
      redis.call('ZREM', KEYS[4], member)
    end
  end
end

local sequence = int(redis.call('HINCRBY', KEYS[1], 'sequence', 1))
local to = version(scope)
local reply = {
  kind = kind, scope = name, from = from, to = to, generation = scope.generation,
  sequence = sequence, children = children, gates = gates,
}
reply.event_id = emit(KEYS[1], KEYS[6], 'commit',
  'kind', kind, 'scope', name, 'from', from, 'to', to, 'generation', scope.generation,
  'sequence', sequence, 'by', ARGV[7], 'children', #children > 0 and cjson.encode(children) or '[]')
local text = cjson.encode(reply)
redis.call('HSET', KEYS[7], 'digest', ARGV[6], 'reply', text)
redis.call('PEXPIRE', KEYS[7], ARGV[8])
return { '0', '', text }
