--[[
Create a scope unless it exists.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] children  KEYS[4] joins  KEYS[5] events
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope
ARGV[4] epoch it starts at, when it is created
ARGV[5] policy, or '-'
ARGV[6] parent scope of the same tenant, or ''
Returns {record, '1' created | '0' it existed and is unchanged, node, node, ...}.
Errors: NEEDREGISTER tenant | parent, TERMMISMATCH, SCOPECLOSED <version of the cancelled parent>
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local held = redis.call('HGET', KEYS[2], ARGV[3])
if held then
  return { held, '0', unpack(joined_nodes(KEYS[4], ARGV[3])) }
end
if ARGV[6] ~= '' then
  local parent = redis.call('HGET', KEYS[2], ARGV[6])
  if not parent then
    return refuse('NEEDREGISTER parent')
  end
  parent = unpack_scope(parent)
  if parent.cancelled then
    return refuse('SCOPECLOSED ' .. version(parent))
  end
end
local scope = { term = ARGV[1], epoch = ARGV[4], generation = '1', policy = ARGV[5], parent = ARGV[6] }
local record = pack_scope(scope)
redis.call('HSET', KEYS[2], ARGV[3], record)
if ARGV[6] ~= '' then
  redis.call('ZADD', KEYS[3], 0, ARGV[6] .. '\0' .. ARGV[3])
end
emit(KEYS[1], KEYS[5], 'register',
  'scope', ARGV[3], 'version', version(scope), 'policy', ARGV[5], 'parent', ARGV[6])
return { record, '1' }
