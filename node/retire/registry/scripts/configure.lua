--[[
Set what a scope is configured with: its policy, and its parent when it has none yet.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] children  KEYS[4] joins  KEYS[5] events
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope
ARGV[4] policy, or '-' for none
ARGV[5] parent scope of the same tenant, or '' to leave it as it is
Returns {record, '0', node, node, ...}. No event is written when nothing changes.
Errors: NEEDREGISTER tenant | scope | parent, TERMMISMATCH, PARENT <held> (it never changes), CYCLE (the
parent is below the scope), SCOPECLOSED <version of the cancelled parent>
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local held = redis.call('HGET', KEYS[2], ARGV[3])
if not held then
  return refuse('NEEDREGISTER scope')
end
local scope = unpack_scope(held)
if ARGV[5] ~= '' and ARGV[5] ~= scope.parent then
  if scope.parent ~= '' then
    return refuse('PARENT ' .. scope.parent)
  end
  local parent = redis.call('HGET', KEYS[2], ARGV[5])
  if not parent then
    return refuse('NEEDREGISTER parent')
  end
  parent = unpack_scope(parent)
  if parent.cancelled then
    return refuse('SCOPECLOSED ' .. version(parent))
  end
  -- A commit follows the children of what it moves: a cycle would have no end.
  local above = parent
  while above and above.parent ~= '' do
    if above.parent == ARGV[3] then
      return refuse('CYCLE')
    end
    local record = redis.call('HGET', KEYS[2], above.parent)
    above = record and unpack_scope(record)
  end
  scope.parent = ARGV[5]
  redis.call('ZADD', KEYS[3], 0, ARGV[5] .. '\0' .. ARGV[3])
end
scope.policy = ARGV[4]
local record = pack_scope(scope)
-- Also when it is the same: a write, so that WAITAOF after it covers the call that made the change.
redis.call('HSET', KEYS[2], ARGV[3], record)
if record ~= held then
  emit(KEYS[1], KEYS[5], 'configure',
    'scope', ARGV[3], 'version', version(scope), 'policy', scope.policy, 'parent', scope.parent)
end
return { record, '0', unpack(joined_nodes(KEYS[4], ARGV[3])) }
